"""How a trial is put to the script that it runs."""

from __future__ import annotations

import re

import pytest

from trainprof.experiments.runner import Script, argument_of, label_of
from trainprof.experiments.trial import Trial, baseline, name_of

SINGLE = Trial(name_of({"num_workers": 3, "persistent_workers": True}))
OF_TWO = Trial(name_of({"num_workers": {"a.py:1": 4, "a.py:2": 2}}))


@pytest.mark.parametrize("trial", [baseline(), SINGLE, OF_TWO, Trial("x" * 400)])
@pytest.mark.parametrize("number", [1, 2])
def test_in_arguments_a_trial_has_a_name_that_no_parser_takes_apart(
    trial: Trial, number: int
) -> None:
    script = Script(("train.py", "hydra.run.dir=runs/{trial}", "--lr=0.1"))
    words = script.for_trial(argument_of(trial, number))
    assert re.fullmatch(r"hydra\.run\.dir=runs/[A-Za-z0-9_-]{1,130}", words[1])
    assert (words[0], words[2]) == ("train.py", "--lr=0.1")


def test_that_name_is_of_one_run_alone() -> None:
    runs = [(SINGLE, 1), (SINGLE, 2), (OF_TWO, 1), (Trial("num_workers=4"), 2), (baseline(), 1)]
    assert len({argument_of(*run) for run in runs}) == len(runs)
    assert argument_of(SINGLE, 1) == "num_workers-3_persistent_workers-True"
    assert argument_of(baseline(), 1) == "baseline"


def test_its_directory_keeps_the_name_that_the_page_shows() -> None:
    assert label_of(SINGLE, 2) == f"{SINGLE.name}.2"
