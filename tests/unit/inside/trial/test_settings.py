"""torch's own settings in a trial, and what it notes of itself."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from support.session import Recorder, read_recordings, run_hooked
from support.trials import end_of_process, faults, start_trial, told

from trainprof.inside.catalogue import default_probes
from trainprof.inside.trial.notes import TrialNotes
from trainprof.launch.options import TrialOptions
from trainprof.record.schema import Topic


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    threads, precision = torch.get_num_threads(), torch.get_float32_matmul_precision()
    benchmark = torch.backends.cudnn.benchmark
    yield
    torch.set_num_threads(threads)
    torch.set_float32_matmul_precision(precision)
    torch.backends.cudnn.benchmark = benchmark


def test_the_number_of_threads_stays(recorder: Recorder) -> None:
    start_trial(recorder, settings={"torch_threads": 3})
    assert torch.get_num_threads() == 3
    torch.set_num_threads(1)
    assert torch.get_num_threads() == 3
    with pytest.raises(RuntimeError, match="positive"):
        torch.set_num_threads(0)
    assert told(recorder)["applied"] == {"torch_threads": 3}
    assert faults(recorder) == []


SCRIPT = """\
import os
import torch
from torch.utils.data import DataLoader, Dataset

class Asking(Dataset):
    def __len__(self): return 2
    def __getitem__(self, index): return torch.get_num_threads()

if __name__ == "__main__":
    torch.set_num_threads(2)
    print(torch.get_num_threads())
    for method in ("fork", "spawn"):
        loader = DataLoader(Asking(), num_workers=1, multiprocessing_context=method)
        print([batch.item() for batch in loader], flush=True)
    os._exit(3)
"""


def test_workers_keep_their_threads_and_a_note_survives_a_crash(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    trial = TrialOptions(settings={"torch_threads": 3}).to_json()
    done = run_hooked(["script.py"], tmp_path, tmp_path / "run", options={"trial": trial})
    assert done.returncode == 3
    # Python's own may say what the crash has left behind.
    assert "Traceback" not in done.stderr
    assert done.stdout == "3\n[1, 1]\n[1, 1]\n"
    main = read_recordings(tmp_path / "run" / "events")[0]
    assert main.notes(Topic.TRIAL) == [{"applied": {"torch_threads": 3}, "refused": {}}]


def test_a_number_that_torch_refuses(recorder: Recorder) -> None:
    start_trial(recorder, settings={"torch_threads": 0})
    assert "positive" in told(recorder)["refused"]["torch_threads"]


def test_precision_of_matrix_products(recorder: Recorder) -> None:
    start_trial(recorder, settings={"float32_matmul_precision": "high"})
    assert torch.get_float32_matmul_precision() == "high"
    end_of_process(recorder)
    assert told(recorder)["applied"] == {"float32_matmul_precision": "high"}
    assert told(recorder)["refused"] == {}


def test_the_scripts_own_precision_stands_and_is_said(recorder: Recorder) -> None:
    start_trial(recorder, settings={"float32_matmul_precision": "high"})
    torch.set_float32_matmul_precision("highest")
    end_of_process(recorder)
    assert torch.get_float32_matmul_precision() == "highest"
    assert told(recorder)["applied"] == {}
    assert "'highest'" in told(recorder)["refused"]["float32_matmul_precision"]


@pytest.mark.parametrize("is_there", [False, True])
def test_cudnns_search(recorder: Recorder, monkeypatch: pytest.MonkeyPatch, is_there: bool) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "is_available", lambda: is_there)
    start_trial(recorder, settings={"cudnn_benchmark": True})
    assert torch.backends.cudnn.benchmark is is_there
    if is_there:
        assert told(recorder)["applied"] == {"cudnn_benchmark": True}
        torch.backends.cudnn.benchmark = False
    end_of_process(recorder)
    assert told(recorder)["applied"] == {}
    why = "sets it to False" if is_there else "no cuDNN"
    assert why in told(recorder)["refused"]["cudnn_benchmark"]


def test_what_never_came_is_said(recorder: Recorder) -> None:
    start_trial(recorder, settings={"fused": True})
    end_of_process(recorder)
    assert told(recorder)["refused"] == {"fused": "no optimizer was built"}


# Notes


def test_a_note_follows_every_change_and_none_a_repetition(recorder: Recorder) -> None:
    notes = TrialNotes({"a": "never a", "b": "never b"})
    notes.apply("a", 1)
    recorder.start(notes)
    notes.apply("a", 1)
    notes.apply("b", 2)
    notes.refuse("c", "first")
    notes.refuse("c", "second")
    notes.take_back("b", "gone")
    end_of_process(recorder)
    found = [(note["applied"], note["refused"]) for note in recorder.read().notes(Topic.TRIAL)]
    assert found == [
        ({"a": 1, "b": 2}, {}),
        ({"a": 1, "b": 2}, {"c": "first"}),
        ({"a": 1}, {"c": "first", "b": "gone"}),
    ]


def test_a_run_without_a_trial_has_nothing_of_one(recorder: Recorder) -> None:
    def names(probes: list[Any]) -> set[str]:
        return {probe.name for probe in probes}

    assert not any(name.startswith("trial") for name in names(default_probes()))
    with_trial = names(default_probes(TrialOptions(data="free").to_json()))
    assert with_trial - names(default_probes()) == {
        "trial",
        "trial_settings",
        "trial_data",
        "trial_losses",
    }


def test_nor_is_anything_of_one_imported() -> None:
    code = (
        "import sys; from trainprof.inside.catalogue import default_probes; default_probes();"
        "print([name for name in sys.modules if name.startswith('trainprof.inside.trial.probes')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
