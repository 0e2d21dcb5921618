"""With how many threads libraries compute in a loader's workers, as the workers note it."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.session import Recording, read_recordings, run_hooked
from support.styles import without_compiler

from trainprof.inside.loading.worker_notes import WorkerThreads
from trainprof.record.schema import Topic

SCRIPT = """
import sys
import torch
from torch.utils.data import DataLoader


def starts(_):
    torch.set_num_threads(3)  # as it starts


class Numbers:
    def __len__(self):
        return 4

    def __getitem__(self, index):
        if sys.argv[2] == "dataset":
            torch.set_num_threads(5)  # for a sample
        return index


if __name__ == "__main__":
    torch.set_num_threads(2)
    four = eval(compile("lambda _: torch.set_num_threads(4)", "<a library>", "eval"))
    function = {"function": starts, "library": four}.get(sys.argv[2])
    loader = DataLoader(
        Numbers(), batch_size=2, num_workers=1, worker_init_fn=function,
        multiprocessing_context=sys.argv[1],
    )
    assert len(list(loader)) == 2
"""


def noted(recording: Recording) -> list[dict[str, Any]]:
    notes = recording.notes(Topic.ENVIRONMENT)
    return [note["worker_threads"] for note in notes if "worker_threads" in note]


@pytest.mark.parametrize(
    ("method", "by", "threads", "line"),
    [
        ("fork", "function", 3, "# as it starts"),
        ("spawn", "function", 3, "# as it starts"),
        ("fork", "dataset", 5, "# for a sample"),
        # Neither the line that sets those of training, nor the one that has the worker forked.
        ("fork", "library", 4, None),
    ],
)
def test_a_worker_notes_torchs_threads_and_who_set_them(
    tmp_path: Path, method: str, by: str, threads: int, line: str | None
) -> None:
    (tmp_path / "script.py").write_text(without_compiler(SCRIPT))
    done = run_hooked(["script.py", method, by], tmp_path, tmp_path / "run")
    assert (done.returncode, done.stderr) == (0, "")
    main, worker = read_recordings(tmp_path / "run" / "events")
    assert noted(main) == []
    [note] = noted(worker)
    assert note["torch"] == threads
    site = worker.texts.get(note["set_at"])
    text = (tmp_path / "script.py").read_text().splitlines()
    expected = [number for number, x in enumerate(text, 1) if line is not None and line in x]
    assert ([] if site is None else [json.loads(site[1])[1]]) == expected


class Session(list[dict[str, Any]]):
    """Keeps what is noted."""

    threads_set_at = 0

    def note_state(self, note: dict[str, Any]) -> None:
        self.append(note["worker_threads"])


def test_what_stays_is_noted_once_and_what_always_changes_not_for_ever() -> None:
    numbers, session = [1], Session()
    torch: Any = SimpleNamespace(get_num_threads=lambda: numbers[-1])
    threads = WorkerThreads(torch, session)  # type: ignore[arg-type]
    for _ in range(3):
        threads.note_changes()
    assert session == [{"torch": 1, "set_at": 0}]
    for number in range(2, 40):
        numbers.append(number)
        threads.note_changes()
    assert [note["torch"] for note in session] == list(range(1, 9))
