"""What is recorded of making batches."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support.session import FakeClock, Recorder, read_recordings, run_hooked
from support.styles import without_compiler
from torch.utils.data import DataLoader, Dataset, IterableDataset, default_collate

from trainprof.inside.process.affinity import own_cores
from trainprof.inside.session import Probe
from trainprof.inside.spans.fetch import FetchProbe
from trainprof.inside.spans.loader import LoaderProbe
from trainprof.record.schema import Kind, Topic


class Numbers(Dataset[int]):
    def __init__(self, clock: FakeClock | None = None) -> None:
        self.clock = clock

    def __len__(self) -> int:
        return 5

    def __getitem__(self, index: int) -> int:
        if self.clock:
            self.clock.advance(100)
        return index


class Stream(IterableDataset[int]):
    def __iter__(self) -> Any:
        return iter(range(3))


def probes() -> list[Probe]:
    loader = LoaderProbe()
    return [loader, FetchProbe(loader)]


def failing_collate(samples: list[Any]) -> Any:
    raise ValueError(f"cannot put {len(samples)} together")


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("collate", [None, failing_collate])
def test_the_same_with_and_without(
    same_with_us: Callable[..., Any], workers: int, collate: Any
) -> None:
    def epoch() -> list[Any]:
        return list(DataLoader(Numbers(), batch_size=2, num_workers=workers, collate_fn=collate))

    kind, _ = same_with_us(epoch)
    assert kind == ("raised" if collate else "returned")


def test_dataset_and_collate_times(recorder: Recorder) -> None:
    clock = FakeClock()

    def collate(samples: list[int]) -> Any:
        clock.advance(7)
        return default_collate(samples)

    recorder.start(*probes(), now=clock)
    list(DataLoader(Numbers(clock), batch_size=2, collate_fn=collate))
    recording = recorder.read()
    fetches = recording.of(Kind.FETCH)
    assert [(e.ns, e.samples, e.flags) for e in fetches] == [(207, 2, 0), (207, 2, 0), (107, 1, 0)]
    assert [e.collate_ns for e in fetches] == [7, 7, 7]


def test_without_batching(recorder: Recorder) -> None:
    recorder.start(*probes())
    assert len(list(DataLoader(Stream(), batch_size=None))) == 3
    assert [e.samples for e in recorder.read().of(Kind.FETCH)] == [1] * 4


def test_forked_workers_write_their_own_logs(recorder: Recorder, tmp_path: Path) -> None:
    """In a process of its own, as a fork handler cannot be taken back."""
    done = run_workers(tmp_path, "fork")
    assert (done.returncode, done.stderr) == (0, "")
    main, *workers = read_recordings(tmp_path / "run" / "events")
    assert main.of(Kind.FETCH) == []
    assert sorted(w.of(Kind.FETCH)[0].flags for w in workers) == [1, 2]
    for worker in workers:
        fetches = worker.of(Kind.FETCH)
        assert len(fetches) == 4  # two epochs, persistent
        assert {f.text["kind"] for f in fetches} == {"DataLoader"}
        assert {f.samples for f in fetches} == {2}
        assert all(0 < f.collate_ns <= f.ns for f in fetches)
        told = [note["cores"] for note in worker.notes(Topic.ENVIRONMENT) if "cores" in note]
        assert told == [own_cores()]  # once, however many batches it makes
    assert not any("cores" in note for note in main.notes(Topic.ENVIRONMENT))


def test_spawned_workers_write_their_own_logs(tmp_path: Path) -> None:
    done = run_workers(tmp_path, "spawn")
    assert (done.returncode, done.stderr) == (0, "")
    _, *workers = read_recordings(tmp_path / "run" / "events")
    fetches = [(f.flags, f.samples) for worker in workers for f in worker.of(Kind.FETCH)]
    assert sorted(fetches) == [(1, 2)] * 4 + [(2, 2)] * 4


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


def run_workers(tmp_path: Path, method: str) -> subprocess.CompletedProcess[str]:
    (tmp_path / "script.py").write_text(without_compiler(WORKERS))
    return run_hooked(["script.py", method], tmp_path, tmp_path / "run")


def test_a_fault_of_ours_harms_nothing(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(collate: object, kept: object, now: object) -> None:
        raise ZeroDivisionError

    recorder.start(*probes())
    monkeypatch.setattr("trainprof.inside.spans.fetch._timed", broken)
    assert len(list(DataLoader(Numbers()))) == 5
    recording = recorder.read()
    assert [note["probe"] for note in recording.notes(Topic.PROBE_FAILED)] == ["fetch"]
    assert len(recording.of(Kind.LOADER_NEXT)) == 5


def test_a_missing_hook_point_is_reported(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.delitem(sys.modules, "torch.utils.data._utils.fetch")
        recorder.start(*probes())
    assert torch.equal(next(iter(DataLoader(Numbers()))), torch.tensor([0]))
    recording = recorder.read()
    assert [n["probe"] for n in recording.notes(Topic.PROBE_UNAVAILABLE)] == ["fetch"]
    assert len(recording.of(Kind.LOADER_NEXT)) == 1
