"""Python code in the loop: beside a loss of torch's functions, and in a library's loop."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from support.cases import STEPS, Planted, case_of, healthy, with_run, with_summary
from support.findings import finding_of, hot_line, is_silent, reported, reports, row

from trainprof.analysis.model.torch_settings import TorchSettings
from trainprof.analysis.summary.code import HotLine, HottestLine
from trainprof.analysis.summary.finding import SHARE_OF
from trainprof.analysis.timeline.checkpoints import Checkpoints
from trainprof.findings.run_context import RunContext

BEFORE, AFTER = "between forward and backward", "after the update"


def with_python(
    line: dict[str, Any] | None = None,
    other_s: float = 2.0,
    *,
    also: tuple[HotLine, ...] = (),
    places: dict[str, float] | None = None,
    **changes: Any,
) -> RunContext:
    """A run with code between the parts of a step, most of it at data.py:12."""
    context = healthy(parts={"other": other_s})
    lines = [*([] if line is None else [hot_line("other", **line)]), *also]
    ledger = replace(context.summary.ledger, other_by_place=places or {AFTER: other_s})
    return with_summary(context, ledger=ledger, part_lines=lines, **changes)


def slow_steps(at: slice) -> RunContext:
    """Python that no usual step has."""
    context = with_python({}, 1.0)
    spent = np.zeros(STEPS, dtype=np.int64)
    spent[at] = int(1e9) // len(range(*at.indices(STEPS)))
    per_step = context.steps.per_step | {"other": spent}
    steps = replace(context.steps, per_step=per_step, epoch_of=np.arange(STEPS) // 50)
    training = replace(context.summary.training, per_step_s={"other": 0.0})
    return replace(with_summary(context, training=training), steps=steps)


def tiny(called: float = 1.0, backward_s: float = 0.01, **line: Any) -> RunContext:
    """A model that hardly takes time, whose modules a share of steps calls."""
    context = case_of(parts={"other": 5.0, "backward": backward_s})
    training = {**context.training, "forward": 0.01}
    forward = np.where(np.arange(STEPS) < called * STEPS, 50_000, 0)
    steps = replace(context.steps, per_step={**context.steps.per_step, "forward": forward})
    context = replace(context, training=training, training_s=sum(training.values()), steps=steps)
    return with_summary(context, part_lines=[hot_line("other", **{"torch_share": 0.1, **line})])


def quick(own_us: float) -> RunContext:
    """100 us a step, some of which may be trainprof's own."""
    planted = Planted(workers=2, fetch_s=0.0001, compute_s=0.0002)
    context = case_of(planted, parts={"other": 0.02})
    overhead = replace(context.summary.overhead, per_step_us=own_us)
    training = replace(context.summary.training, steps=STEPS)
    return with_summary(context, overhead=overhead, training=training)


BUSY = Planted(workers=2, fetch_s=0.04, running=1.0, compute_s=0.019, cores=3)
ALL = {"python_s": 1.98, "saved_s": 1.98, "is_at_most": True}
SOME = {"python_s": 0.78, "saved_s": 0.78, "rel": 0.03}
AVERAGE = with_python({"torch_share": 0.9}, loss_in_loop_s=0.0)
CALL = "matplotlib.figure (Figure.savefig)"
THREE = {"line_share": 0.4, "other_lines": {"data.py:13": 0.3, "data.py:14": 0.2}}
NAMELESS, NOT_APART = {"function": "<module>"}, {"is_line_known": False}
A_LITTLE = with_python({"line_share": 0.9}, 0.2)
FORWARD_TOO = with_python({}, 1.0, also=(hot_line("forward"),))

test_python_in_loop = reports(
    "python_in_loop",
    {
        "its line": row(with_python({}), "data.py:12", **ALL),
        "three lines": row(with_python(THREE), "data.py:12", **ALL),
        "three of a script": row(with_python({**THREE, **NAMELESS}), "data.py:12", **ALL),
        "three, not told apart": row(with_python({**THREE, **NOT_APART}), "data.py:12", **ALL),
        "three of a script, not": row(
            with_python({**THREE, **NAMELESS, **NOT_APART}), "data.py:12", **ALL
        ),
        "most in a library": row(with_python({"library_call": CALL}), "data.py:12", **ALL),
        "no line is known": row(with_python(), None, **ALL),
        "only where it ends": row(with_python({"is_end": True}), None, **ALL),
        "a wait": row(with_python({"waits_share": 0.9}), "data.py:12", **ALL),
        "some comes once": row(with_python({}, once_in_loop_s=1.2), "data.py:12", **SOME),
        "average": row(AVERAGE, "data.py:12", **ALL),
        "7 %, certain": row(A_LITTLE, "data.py:12", saved_s=(0.16, 0.2)),
        # Forward and what follows may be one line of a loop of the user's own.
        "forward's line too": row(FORWARD_TOO, None, saved_s=0.98, library_at=None),
        "between epochs": row(slow_steps(slice(50, None, 50)), "data.py:12", of_steps=False),
        "little of trainprof's own": row(quick(own_us=1.0), None),
        "beside a tiny model": row(tiny(called=0.6), "data.py:12"),
        "now and then": row(slow_steps(slice(25, None, 50)), "data.py:12", of_steps=False),
    },
)

test_no_python_to_change = is_silent(
    "python_in_loop",
    {
        "nearly all comes once": with_python({}, once_in_loop_s=1.9),
        "may be a loss": with_python({"is_likely": True}, places={BEFORE: 1.9}),
        "7 %, not one line": with_python({"line_share": 0.5}, 0.2),
        "a little": healthy(parts={"other": 0.15}),
        "waiting for ranks": with_run(with_python({}, 1.0), world_size=2),
        # The step is as long as the workers need for a batch: Python would only become waiting.
        "workers do not keep up": case_of(BUSY, parts={"other": 1.0}),
        "trainprof's own": quick(own_us=40.0),
        "a model of functions": tiny(called=0.0),
        "modules now and then": tiny(called=0.4),
        "functions, and a module": tiny(backward_s=0.8),
        "torch outside of modules": tiny(torch_share=0.9),
        "an unknown line's tiny model": tiny(torch_share=None),
    },
)


@pytest.mark.parametrize(("others", "costliest"), [(8, "train.py:34 main()"), (52, "")])
def test_without_a_sure_line_it_shows_what_most_samples_met(others: int, costliest: str) -> None:
    lines = [
        HottestLine(site, "main", "other", "training", [0.08, 0.39], samples)
        for site, samples in (("train.py:34", 52), ("train.py:36", others))
    ]
    context = with_python({"share": 0.5, "is_end": True, "is_likely": True}, hot_lines=lines)
    finding = finding_of("python_in_loop", context)
    assert finding.site is None
    assert costliest in finding.costliest
    assert bool(finding.costliest) == bool(costliest)


@pytest.mark.parametrize("evaluation_s", [0.0, 3.0])
def test_its_share_is_of_a_step_however_long_the_rest_of_training_takes(
    evaluation_s: float,
) -> None:
    context = healthy(parts={"other": 2.0, "evaluation": evaluation_s})
    steady = context.summary.training
    per_step_s = {**(steady.per_step_s or {}), "evaluation": 0.0}
    context = with_summary(
        context, training=replace(steady, per_step_s=per_step_s), part_lines=[hot_line("other")]
    )
    finding = finding_of("python_in_loop", context)
    assert finding is not None
    assert finding.evidence["python_share"] == pytest.approx(0.49, abs=0.005)
    assert finding.evidence[SHARE_OF] == "a steady step"


# -- a library's loop

PLAIN, LIGHTNING = TorchSettings(), TorchSettings(trains_by_lightning=True)
BY_LIBRARY = HotLine("other", "train.py:50", "main", ["train.py:60"], 90, 0.9, 1.0)


def at(site: str, part: str = "other", **changes: Any) -> HotLine:
    return replace(BY_LIBRARY, part=part, site=site, **changes)


def fitted(
    *between: HotLine, other_s: float = 1.0, settings: TorchSettings = LIGHTNING, **loader: Any
) -> RunContext:
    """A run of a library's loop that is called at train.py:50."""
    planted = Planted(workers=2, fetch_s=0.002).having(**loader)
    calls = ["train.py:50", "train.py:60"]
    lines = [at("net.py:9", "forward", called_from=calls), at("train.py:50", "backward"), *between]
    context = case_of(planted, parts={"other": other_s}, torch=settings)
    return with_summary(context, part_lines=lines)


def with_loader(line: int, built_by: str | None) -> RunContext:
    """No sample met the model: a library may be known by the loader that it makes."""
    context = fitted(settings=PLAIN, site=f"train.py:{line}", built_by=built_by)
    return with_summary(context, part_lines=[BY_LIBRARY])


LIKELY = replace(BY_LIBRARY, is_likely=True, is_end=True)
SET_BY_NONE = fitted(BY_LIBRARY, at("train.py:50", "optimizer"), settings=PLAIN)
IN_LIBRARY, OWN = {"library_at": "train.py:50"}, {"library_at": None}

test_a_librarys_loop = reports(
    "python_in_loop",
    {
        "its own code": row(fitted(BY_LIBRARY), "train.py:50", **IN_LIBRARY, cautions=[]),
        "likely": row(fitted(LIKELY), "train.py:50", **IN_LIBRARY),
        "no line": row(fitted(), "train.py:50", **IN_LIBRARY),
        "without settings": row(SET_BY_NONE, "train.py:50", **IN_LIBRARY),
        "a Trainer": row(fitted(BY_LIBRARY, built_by="transformers"), "train.py:50", **IN_LIBRARY),
        "known by its loader": row(with_loader(50, "transformers"), "train.py:50", **IN_LIBRARY),
        "no loader of its own": row(with_loader(50, None), "train.py:50", **OWN),
        "a loader of another line": row(with_loader(20, "transformers"), "train.py:50", **OWN),
        "a hook": row(fitted(at("hooks.py:3", called_from=["train.py:50"])), "hooks.py:3", **OWN),
        "a line of an own loop": row(fitted(at("train.py:53")), "train.py:53", **OWN),
        "batches taken elsewhere": row(fitted(at("train.py:49", "data_wait")), None, **OWN),
    },
)


test_a_little = is_silent("python_in_loop", {"it": fitted(BY_LIBRARY, other_s=0.3)})


def test_what_is_saved_in_a_librarys_loop_is_not_its_python() -> None:
    """All of a step is called at the one line."""
    context = fitted(BY_LIBRARY)
    saving = Checkpoints(saves=4, save_s=0.5, site="train.py:50")
    training = {**context.training, "checkpoint": 0.5}
    rules = reported(replace(context, checkpoints=saving, training=training))
    assert set(rules) == {"python_in_loop", "slow_checkpoints"}
