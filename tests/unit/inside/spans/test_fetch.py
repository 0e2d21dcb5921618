"""What is recorded of making batches."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.loaders import Numbers, Stream, loader_probes
from support.session import FakeClock, Recorder, read_recordings, run_hooked
from support.styles import without_compiler
from torch.utils.data import DataLoader, default_collate

from trainprof.inside.process.usage import own_cores
from trainprof.inside.spans.fetch import FetchProbe
from trainprof.record.hot import PURE_PYTHON
from trainprof.record.schema import Kind, Topic


class Slow(Numbers):
    def __init__(self, clock: FakeClock) -> None:
        super().__init__(5)
        self.clock = clock

    def __getitem__(self, index: int) -> int:
        self.clock.advance(100)
        return index


def test_dataset_and_collate_times(recorder: Recorder) -> None:
    clock = FakeClock()

    def collate(samples: list[int]) -> Any:
        clock.advance(7)
        return default_collate(samples)

    recorder.start(*loader_probes(FetchProbe), now=clock)
    list(DataLoader(Slow(clock), batch_size=2, collate_fn=collate))
    recording = recorder.read()
    fetches = recording.of(Kind.FETCH)
    assert [(e.ns, e.samples, e.flags) for e in fetches] == [(207, 2, 0), (207, 2, 0), (107, 1, 0)]
    assert [e.collate_ns for e in fetches] == [7, 7, 7]


def test_without_batching(recorder: Recorder) -> None:
    recorder.start(*loader_probes(FetchProbe))
    assert len(list(DataLoader(Stream(), batch_size=None))) == 5
    assert [e.samples for e in recorder.read().of(Kind.FETCH)] == [1] * 6


def pickled(fetcher: Any) -> Any:
    return pickle.loads(pickle.dumps(fetcher))


@pytest.mark.parametrize("pure", ["0", "1"])
@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickled])
def test_a_fetcher_can_be_copied_as_without_us(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch, copied: Callable[[Any], Any], pure: str
) -> None:
    monkeypatch.setenv(PURE_PYTHON, pure)
    recorder.start(*loader_probes(FetchProbe))
    fetcher = iter(DataLoader(Numbers(5), batch_size=2))._dataset_fetcher  # type: ignore[attr-defined]
    for made in (fetcher, copied(fetcher), copied(copied(fetcher)), fetcher):
        assert made.fetch([1, 2]).tolist() == [1, 2]
    assert copied(fetcher.collate_fn) is default_collate
    fetches = recorder.read().of(Kind.FETCH)
    assert [(e.samples, e.collate_ns > 0) for e in fetches] == [(2, True)] * 4


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers_write_their_own_logs(tmp_path: Path, method: str) -> None:
    """In a process of its own, as a fork handler cannot be taken back."""
    (tmp_path / "script.py").write_text(without_compiler(WORKERS))
    done = run_hooked(["script.py", method], tmp_path, tmp_path / "run")
    assert (done.returncode, done.stderr) == (0, "")
    main, *workers = read_recordings(tmp_path / "run" / "events")
    assert main.of(Kind.FETCH) == []
    assert sorted(w.of(Kind.FETCH)[0].flags for w in workers) == [1, 2]
    for worker in workers:
        fetches = worker.of(Kind.FETCH)
        assert len(fetches) == 4  # two epochs, persistent
        assert {f.samples for f in fetches} == {2}
        assert method == "spawn" or {f.text["kind"] for f in fetches} == {"DataLoader"}
        assert all(0 < f.collate_ns <= f.ns for f in fetches)
        cores = [note["cores"] for note in worker.notes(Topic.ENVIRONMENT) if "cores" in note]
        assert cores == [own_cores()]  # once, however many batches it makes
    assert not any("cores" in note for note in main.notes(Topic.ENVIRONMENT))


WORKERS = """
import sys
import torch
from torch.utils.data import DataLoader

if __name__ == "__main__":
    loader = DataLoader(
        list(range(8)), batch_size=2, num_workers=2, persistent_workers=True,
        multiprocessing_context=sys.argv[1],
    )
    for _ in range(2):
        assert len(list(loader)) == 4
"""
