"""Which losses are kept, and when they are told."""

from __future__ import annotations

import math

import pytest
import torch
from support.session import Recorder
from support.trials import end_of_process, faults, start_trial, told
from torch.utils.checkpoint import checkpoint

from trainprof.inside.trial.probes import MOST_LOSSES
from trainprof.record.schema import Kind, Topic


def parameter() -> torch.nn.Parameter:
    return torch.nn.Parameter(torch.tensor([1.0, 2.0]))


def test_losses_are_told_at_the_end_as_they_were(recorder: Recorder) -> None:
    start_trial(recorder)
    p = parameter()
    for factor in (1.0, 0.1):
        loss = (p * factor).sum()
        loss.backward()
        loss.detach().zero_()  # in place
    torch.autograd.backward([(p * 2).sum(), p.sum()])
    assert recorder.read().notes(Topic.TRIAL) == []
    end_of_process(recorder)
    assert told(recorder)["losses"] == [3.0, pytest.approx(0.3), 6.0]
    assert recorder.read().of(Kind.SYNC) == []
    assert faults(recorder) == []


def test_only_the_first_and_only_single_numbers(recorder: Recorder) -> None:
    start_trial(recorder)
    p = parameter()
    (p * 1).backward(torch.ones(2))
    torch.autograd.grad(p.sum(), p)
    for number in range(MOST_LOSSES + 5):
        (p.sum() * number).backward()
    end_of_process(recorder)
    assert told(recorder)["losses"] == [3.0 * number for number in range(MOST_LOSSES)]


@pytest.mark.parametrize("reentrant", [True, False])
def test_backwards_inside_a_backward_are_not_losses(recorder: Recorder, reentrant: bool) -> None:
    start_trial(recorder)
    p = parameter()
    doubled = checkpoint(lambda x: x * 2, p, use_reentrant=reentrant)
    doubled.sum().backward()
    end_of_process(recorder)
    assert told(recorder)["losses"] == [6.0]


def test_one_that_is_not_finite_is_told_as_nothing(recorder: Recorder) -> None:
    start_trial(recorder)
    (parameter().sum() * math.inf).backward()
    end_of_process(recorder)
    assert told(recorder)["losses"] == [None]


def test_an_error_of_the_engine_is_the_scripts(recorder: Recorder) -> None:
    start_trial(recorder)
    with pytest.raises(RuntimeError, match="does not require grad"):
        torch.ones(1).backward()
    assert faults(recorder) == []
