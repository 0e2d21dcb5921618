"""With how many threads libraries compute in a loader's workers, as the workers note it."""

from __future__ import annotations

import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.session import Recording, read_recordings, run_hooked
from support.styles import without_compiler

from trainprof.inside.loading.worker_threads import WorkerThreads
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


def run(tmp_path: Path, method: str, by: str) -> subprocess.CompletedProcess[str]:
    (tmp_path / "script.py").write_text(without_compiler(SCRIPT))
    return run_hooked(["script.py", method, by], tmp_path, tmp_path / "run")


def told(recording: Recording) -> list[dict[str, Any]]:
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
        ("fork", "nobody", 1, None),
    ],
)
def test_a_worker_tells_torchs_threads_and_who_set_them(
    tmp_path: Path, method: str, by: str, threads: int, line: str | None
) -> None:
    done = run(tmp_path, method, by)
    assert (done.returncode, done.stderr) == (0, "")
    main, worker = read_recordings(tmp_path / "run" / "events")
    assert told(main) == []
    [found] = told(worker)
    assert found["torch"] == threads
    site = worker.texts.get(found["set_at"])
    text = (tmp_path / "script.py").read_text().splitlines()
    if line is None:
        assert site is None
    else:
        assert site is not None
        assert f'script.py", {1 + next(k for k, x in enumerate(text) if line in x)},' in site[1]


class Told(list[dict[str, Any]]):
    """A session that keeps what is noted."""

    threads_set_at = 0

    def note_state(self, told: dict[str, Any]) -> None:
        self.append(told["worker_threads"])


def watched(numbers: list[int]) -> tuple[WorkerThreads, Told]:
    session = Told()
    torch: Any = SimpleNamespace(get_num_threads=lambda: numbers[-1])
    probed: Any = session
    return WorkerThreads(torch, probed), session


def test_what_stays_is_told_once_and_what_always_changes_not_for_ever() -> None:
    numbers = [1]
    threads, session = watched(numbers)
    for _ in range(3):
        threads.look()
    assert session == [{"torch": 1, "set_at": 0}]
    for number in range(2, 40):
        numbers.append(number)
        threads.look()
    assert [told["torch"] for told in session] == list(range(1, 9))
