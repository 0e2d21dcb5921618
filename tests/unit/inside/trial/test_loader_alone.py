"""A loader that runs alone: batches back to back, then the run ends as --max-steps ends it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from support.session import Recorder, read_recordings, run_hooked
from support.trials import faults, site_in, start_trial, trial_note
from torch.utils.data import DataLoader, Dataset

from trainprof.inside.catalogue import default_probes
from trainprof.inside.limits.limit import TRIAL, RunLimitReached
from trainprof.launch.options import TrialOptions
from trainprof.record.schema import Kind


class Numbers(Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor(float(index))


def made(**options: Any) -> DataLoader[torch.Tensor]:
    return DataLoader(Numbers(), batch_size=4, **options)


def made_elsewhere(**options: Any) -> DataLoader[torch.Tensor]:
    return DataLoader(Numbers(), batch_size=4, **options)


HERE = site_in(made)


@pytest.mark.parametrize(
    "way", [{}, {"num_workers": 1}, {"num_workers": 1, "persistent_workers": True}]
)
@pytest.mark.parametrize(("asked", "passes"), [(2, [2]), (3, [3]), (7, [3, 3, 1]), (None, [3])])
def test_so_many_batches_and_the_end(
    recorder: Recorder, way: dict[str, Any], asked: int | None, passes: list[int]
) -> None:
    start_trial(recorder, data="alone", batches=asked, sites=(HERE,))
    with pytest.raises(RunLimitReached) as reached:
        next(iter(made(**way)))
    assert reached.value.code == 0
    recording = recorder.read()
    batches = [event.value for event in recording.of(Kind.LOADER_NEXT)]
    assert batches == [number + 1 for count in passes for number in range(count)]
    assert recording.of(Kind.LIMIT)[0].value == 3
    assert trial_note(recorder)["applied"] == {"data": "alone"}
    assert faults(recorder) == []


def test_evaluation_and_other_loaders_go_on(recorder: Recorder) -> None:
    start_trial(recorder, data="alone", batches=2, sites=(HERE,))
    loader = made()
    with torch.no_grad():
        assert len(list(loader)) == 3
    assert len(list(made_elsewhere())) == 3
    with pytest.raises(RunLimitReached):
        list(loader)


def test_off_the_main_thread_the_run_ends_at_its_next_step(recorder: Recorder) -> None:
    """Nothing but plain training would follow, as long as the trial may take."""
    trial = TrialOptions(data="alone", batches=2, sites=(HERE,)).to_json()
    recorder.start(*default_probes(trial), options={"trial": trial, "max_time_s": 600.0})
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
    optimizer.step()
    taken: list[int] = []
    thread = threading.Thread(target=lambda: taken.append(len(list(made()))))
    thread.start()
    thread.join()
    with pytest.raises(RunLimitReached) as reached:
        optimizer.step()
    assert (reached.value.code, reached.value.limit) == (0, TRIAL)
    assert recorder.read().of(Kind.LIMIT)[0].value == 3
    assert (taken, list(trial_note(recorder)["refused"])) == ([3], ["data"])
    assert faults(recorder) == []


def test_what_a_class_makes_of_its_batches_is_not_its_loaders_work(recorder: Recorder) -> None:
    class Printing(DataLoader[torch.Tensor]):
        def __iter__(self) -> Iterator[torch.Tensor]:  # type: ignore[override]
            for _ in super().__iter__():
                raise AssertionError("no batch leaves the loader")
            yield torch.zeros(1)

    def printing() -> Any:
        return Printing(Numbers(), batch_size=4)

    start_trial(recorder, data="alone", batches=5, sites=(site_in(printing),))
    with pytest.raises(RunLimitReached):
        next(iter(printing()))
    assert len(recorder.read().of(Kind.LOADER_NEXT)) == 5


class Broken(Numbers):
    def __getitem__(self, index: int) -> torch.Tensor:
        raise KeyError("sample")


@pytest.mark.parametrize(
    ("dataset", "batch_size", "error"),
    [(Numbers(), 100, RunLimitReached), (Broken(), 1, KeyError)],  # the first has no batch
)
def test_an_empty_loader_ends_the_run_and_errors_are_the_scripts(
    recorder: Recorder, dataset: Any, batch_size: int, error: type[BaseException]
) -> None:
    def loader() -> Any:
        return DataLoader(dataset, batch_size, drop_last=True)

    start_trial(recorder, data="alone", batches=5, sites=(site_in(loader),))
    with pytest.raises(error):
        list(loader())
    assert faults(recorder) == []


SCRIPT = """\
import atexit
from torch.utils.data import DataLoader
atexit.register(print, "atexit")
try:
    for batch in DataLoader(list(range(9)), 3):
        print("never")
except Exception:
    print("never")
finally:
    print("finally")
print("never")
"""


def test_finally_blocks_run_and_the_status_is_0(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    trial = TrialOptions(data="alone", batches=5, sites=("script.py:5",)).to_json()
    done = run_hooked(["script.py"], tmp_path, tmp_path / "run", options={"trial": trial})
    assert (done.returncode, done.stdout, done.stderr) == (0, "finally\natexit\n", "")
    (main,) = read_recordings(tmp_path / "run" / "events")
    assert len(main.of(Kind.LOADER_NEXT)) == 5
