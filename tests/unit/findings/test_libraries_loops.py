"""Loops that are a library's, and collections of garbage in them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from support.cases import STEPS, Planted, case_of
from support.found import found, only

from trainprof.analysis.model.torch_settings import LoopedOptimizer, TorchSettings
from trainprof.analysis.summary.code import HotLine
from trainprof.analysis.timeline.checkpoints import Checkpoints
from trainprof.findings.diagnose import diagnose
from trainprof.findings.run_context import RunContext


def fitted(*between: HotLine, other_s: float = 1.0, **changes: Any) -> RunContext:
    """A run of a library's loop that is called at train.py:50."""
    context = case_of(Planted(workers=2, fetch_s=0.002), parts={"other": other_s})
    lines = [
        HotLine("forward", "net.py:9", "training_step", ["train.py:50", "train.py:60"], 90, 1, 1),
        HotLine("backward", "train.py:50", "main", ["train.py:60"], 90, 1.0, 1.0),
        *between,
    ]
    summary = replace(context.summary, part_lines=lines)
    return replace(context, summary=summary, **changes)


LIGHTNING = TorchSettings(trains_by_lightning=True)


BY_LIBRARY = HotLine("other", "train.py:50", "main", ["train.py:60"], 90, 0.9, 1.0)


@pytest.mark.parametrize(
    ("line", "is_sure"),
    [
        (BY_LIBRARY, True),
        (replace(BY_LIBRARY, is_likely=True, is_end=True), False),
        (replace(BY_LIBRARY, share=0.2), False),
        (None, False),
    ],
)
def test_a_librarys_loop_is_named_where_it_is_called_with_its_settings(
    line: HotLine | None, is_sure: bool
) -> None:
    between = [] if line is None else [line]
    finding = only(fitted(*between, torch=LIGHTNING))
    assert (finding.id, finding.site) == ("python_in_loop", "train.py:50")
    assert finding.evidence["library_at"] == "train.py:50"
    called = "the loop of the library called at train.py:50 takes" in finding.title
    assert called is is_sure
    assert ("the library called at train.py:50" in finding.advice) is not is_sure
    assert ("hooks of your own" in finding.advice) is not is_sure
    assert "enable_progress_bar=False" in finding.advice
    assert "log_every_n_steps" in finding.advice
    assert "do it less often" not in finding.advice
    # Little of it is not told: a library's loop is what it is.
    assert found(fitted(*between, torch=LIGHTNING, other_s=0.3)) == []


def test_which_settings_a_librarys_loop_has() -> None:
    context = fitted(BY_LIBRARY, replace(BY_LIBRARY, part="optimizer"))
    assert "no progress bar, logging less often, fewer callbacks" in only(context).advice
    assert only(context).cautions == []
    [feeder] = context.feeding
    by_trainer = replace(feeder, loader=replace(feeder.loader, built_by="transformers"))
    advice = only(replace(context, feeding=[by_trainer], torch=LIGHTNING)).advice
    assert "disable_tqdm=True, a larger logging_steps of TrainingArguments" in advice
    assert "its Trainer" not in advice


@pytest.mark.parametrize(
    ("lines", "site"),
    [
        pytest.param(
            [HotLine("other", "hooks.py:3", "on_batch_end", ["train.py:50"], 90, 0.9, 1.0)],
            "hooks.py:3",
            id="a hook of the user's",
        ),
        pytest.param([replace(BY_LIBRARY, site="train.py:53")], "train.py:53", id="a line of it"),
        pytest.param(
            [BY_LIBRARY, HotLine("optimizer", "train.py:51", "main", ["train.py:60"], 9, 1, 1)],
            None,
            id="the optimizer is stepped elsewhere",
        ),
        pytest.param(
            [HotLine("data_wait", "train.py:49", "main", ["train.py:60"], 9, 1, 1)],
            None,
            id="no line, and batches are taken elsewhere",
        ),
    ],
)
def test_a_loop_of_the_users_own_is_no_librarys(lines: list[HotLine], site: str | None) -> None:
    finding = only(fitted(*lines, torch=LIGHTNING))
    assert (finding.site, finding.evidence["library_at"]) == (site, None)
    assert "library" not in finding.title
    assert "settings" not in finding.advice


@pytest.mark.parametrize(
    ("built_at", "built_by", "is_librarys"),
    [
        ("train.py:50", "transformers", True),
        ("train.py:20", "transformers", False),
        ("train.py:50", None, False),
    ],
)
def test_where_no_look_met_the_model_a_library_is_known_by_the_loader_that_it_makes(
    built_at: str, built_by: str | None, is_librarys: bool
) -> None:
    context = fitted()
    [feeder] = context.feeding
    made = replace(feeder, loader=replace(feeder.loader, site=built_at, built_by=built_by))
    summary = replace(context.summary, part_lines=[BY_LIBRARY])
    finding = only(replace(context, summary=summary, feeding=[made]))
    assert finding.site == "train.py:50"
    assert (finding.evidence["library_at"] is not None) is is_librarys


def test_a_line_of_backward_alone_tells_of_no_library() -> None:
    context = fitted(torch=LIGHTNING)
    lines = [line for line in context.summary.part_lines if line.part == "backward"]
    assert only(replace(context, summary=replace(context.summary, part_lines=lines))).site is None


def test_what_is_saved_in_a_librarys_loop_is_not_its_python() -> None:
    """All of a step is called at the one line."""
    context = fitted(BY_LIBRARY, torch=LIGHTNING)
    saving = Checkpoints(saves=4, save_s=0.5, site="train.py:50")
    training = {**context.training, "checkpoint": 0.5}
    known = found(replace(context, checkpoints=saving, training=training))
    assert set(known) == {"python_in_loop", "slow_checkpoints"}


def test_collections_that_the_loop_asks_for_are_told_from_pythons_own() -> None:
    context = case_of(Planted(workers=2, fetch_s=0.002), parts={"gc": 1.0})
    context = replace(
        context,
        summary=replace(context.summary, training=replace(context.summary.training, steps=STEPS)),
    )
    by_itself = only(replace(context, full_collections=4))
    assert len(by_itself.cautions) == 1
    called = only(replace(context, full_collections=STEPS))
    assert called.advice.startswith("take gc.collect() out")
    assert called.cautions == []
    # Two walks are no habit: a longer run may have no more.
    assert found(replace(context, full_collections=2)) == []


@pytest.mark.parametrize(
    ("tensors", "is_plain", "at_least"),
    [(4, True, None), (120, True, 1.0), (4, False, 1.05)],
)
def test_plain_sgd_of_few_parameters_has_nothing_to_fuse(
    tensors: int, is_plain: bool, at_least: float | None
) -> None:
    changed = LoopedOptimizer("SGD", tensors, "train.py:60", is_plain, spent_s=1.5)
    healthy = Planted(workers=2, fetch_s=0.002)
    context = case_of(healthy, parts={"optimizer": 1.5}, torch=TorchSettings(looped=[changed]))
    findings = [finding for finding in diagnose(context).findings if finding.id == "slow_optimizer"]
    assert bool(findings) is (at_least is not None)
    if at_least is not None:
        assert findings[0].predicted_speedup is not None
        assert findings[0].predicted_speedup[0] == pytest.approx(at_least, abs=0.05)
