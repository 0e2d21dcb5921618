"""What a trial notes of itself, and the losses that it keeps."""

from __future__ import annotations

import math
import subprocess
import sys
from typing import Any

import pytest
import torch
from support.session import Recorder
from support.trials import end_of_process, faults, start_trial, trial_note
from torch.utils.checkpoint import checkpoint

from trainprof.inside.catalogue import default_probes
from trainprof.inside.trial.probes import MOST_LOSSES
from trainprof.launch.options import TrialOptions
from trainprof.record.schema import Kind, Topic


def test_a_run_without_a_trial_has_no_probe_and_no_import_of_it() -> None:
    def names(trial: Any = None) -> set[str]:
        return {probe.name for probe in default_probes(trial)}

    assert not any(name.startswith("trial") for name in names())
    of_trial = {"trial", "trial_settings", "trial_data", "trial_losses"}
    assert names(TrialOptions(data="free").to_json()) - names() == of_trial
    code = (
        "import sys; from trainprof.inside.catalogue import default_probes; default_probes();"
        "print([name for name in sys.modules if name.startswith('trainprof.inside.trial.probes')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


# Losses


def parameter() -> torch.nn.Parameter:
    return torch.nn.Parameter(torch.tensor([1.0, 2.0]))


def losses(recorder: Recorder) -> list[Any]:
    assert recorder.read().notes(Topic.TRIAL) == []
    end_of_process(recorder)
    assert faults(recorder) == []
    noted: list[Any] = trial_note(recorder)["losses"]
    return noted


def test_losses_are_noted_at_the_end_as_they_were(recorder: Recorder) -> None:
    start_trial(recorder)
    p = parameter()
    for factor in (1.0, 0.1, math.inf):
        loss = (p * factor).sum()
        loss.backward()
        loss.detach().zero_()  # in place
    torch.autograd.backward([(p * 2).sum(), p.sum()])
    with pytest.raises(RuntimeError, match="does not require grad"):
        torch.ones(1).backward()
    assert losses(recorder)[:4] == [3.0, pytest.approx(0.3), None, 6.0]
    assert recorder.read().of(Kind.SYNC) == []


def test_only_the_first_and_only_single_numbers(recorder: Recorder) -> None:
    start_trial(recorder)
    p = parameter()
    (p * 1).backward(torch.ones(2))
    torch.autograd.grad(p.sum(), p)
    for number in range(MOST_LOSSES + 5):
        (p.sum() * number).backward()
    assert losses(recorder) == [3.0 * number for number in range(MOST_LOSSES)]


@pytest.mark.parametrize("reentrant", [True, False])
def test_backwards_inside_a_backward_are_not_losses(recorder: Recorder, reentrant: bool) -> None:
    start_trial(recorder)
    doubled = checkpoint(lambda x: x * 2, parameter(), use_reentrant=reentrant)
    doubled.sum().backward()
    assert losses(recorder) == [6.0]
