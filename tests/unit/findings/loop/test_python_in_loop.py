"""Python code in the loop: beside a loss of torch's functions, and in a library's loop."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from support.cases import STEPS, Planted, case_of, healthy, with_run, with_summary
from support.findings import finding_of, hot_line, only, reported

from trainprof.analysis.model.torch_settings import TorchSettings
from trainprof.analysis.summary.code import HotLine
from trainprof.analysis.timeline.checkpoints import Checkpoints
from trainprof.findings.run_context import RunContext

BEFORE, AFTER = "between forward and backward", "after the update"
CLOSURE = "in the closure that optimizer.step calls"
LOSS = {"torch_share": 0.95, "loss_share": 0.95, "seconds": 1.9}
METRIC = HotLine("other", "metrics.py:7", "rank", ["train.py:52"], 60, 0.36, 0.72, line_share=0.36)


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


@pytest.mark.parametrize(
    ("context", "site", "python_s"),
    [
        pytest.param(with_python({}), "data.py:12", 1.98, id="its line"),
        pytest.param(with_python({"is_line_known": False}), "data.py:12", 1.98, id="a function"),
        pytest.param(with_python(), None, 1.98, id="no line is known"),
        pytest.param(with_python({"is_end": True}), None, 1.98, id="only where it ends"),
        pytest.param(with_python({"waits_share": 0.9}), "data.py:12", 1.98, id="a wait"),
        pytest.param(with_python({}, once_in_loop_s=1.2), "data.py:12", 0.78, id="some comes once"),
        pytest.param(with_python({}, once_in_loop_s=1.9), None, None, id="nearly all comes once"),
        pytest.param(
            with_python(LOSS, loss_in_loop_s=1.9, places={BEFORE: 2.0}), None, None, id="a loss"
        ),
        pytest.param(
            with_python({**LOSS, "share": 0.6, "seconds": 1.2}, also=(METRIC,), loss_in_loop_s=1.2),
            *("metrics.py:7", 0.78),
            id="a metric beside a loss",
        ),
        pytest.param(
            with_python({"torch_share": 0.9}, loss_in_loop_s=0.0), "data.py:12", 1.98, id="average"
        ),
        pytest.param(
            with_python({"loss_share": 0.4}, loss_in_loop_s=0.0), "data.py:12", 1.98, id="learned"
        ),
        pytest.param(
            with_python({"is_likely": True}, places={BEFORE: 1.9}), None, None, id="may be a loss"
        ),
        pytest.param(
            with_python({}, loss_in_loop_s=1.2, loss_by_place={CLOSURE: 1.2}),
            *("data.py:12", 0.78),
            id="a loss in a closure",
        ),
        pytest.param(with_python({"line_share": 0.9}, 0.2), "data.py:12", 0.18, id="7 %, certain"),
        pytest.param(with_python({"line_share": 0.5}, 0.2), None, None, id="7 %, not one line"),
        pytest.param(with_python({"is_likely": True}, 0.2), None, None, id="7 %, not certain"),
        # Forward and what follows may be one line of a loop of the user's own.
        pytest.param(
            with_python({}, 1.0, also=(hot_line("forward"),)), None, 0.98, id="forward's line too"
        ),
        pytest.param(
            with_python({}, 0.3, also=(hot_line("forward"),)), None, None, id="a little there"
        ),
        # It may wait for the others.
        pytest.param(with_run(with_python({}, 1.0), world_size=2), None, None, id="ranks"),
    ],
)
def test_python_in_loop(context: RunContext, site: str | None, python_s: float | None) -> None:
    if python_s is None:
        assert reported(context) == []
        return
    finding = only(context)
    assert (finding.id, finding.site, finding.is_at_most) == ("python_in_loop", site, True)
    assert finding.evidence["python_s"] == pytest.approx(python_s, abs=0.02)
    assert finding.recoverable_s == pytest.approx(python_s, abs=0.02)


def test_a_metric_beside_a_loss_has_its_share_of_the_rest() -> None:
    loss = {**LOSS, "share": 0.6, "seconds": 1.2}
    finding = only(with_python(loss, also=(METRIC,), loss_in_loop_s=1.2))
    assert finding.evidence["left_out_as_loss_s"] == 1.2
    assert finding.evidence["line_share"] == pytest.approx(0.93, abs=0.01)


@pytest.mark.parametrize("at", [slice(50, None, 50), slice(25, None, 50)])
def test_python_that_no_usual_step_has_is_no_matter_of_steps(at: slice) -> None:
    """It comes between epochs, or now and then."""
    context = with_python({}, 1.0)
    spent = np.zeros(STEPS, dtype=np.int64)
    spent[at] = int(1e9) // len(range(*at.indices(STEPS)))
    per_step = context.steps.per_step | {"other": spent}
    steps = replace(context.steps, per_step=per_step, epoch_of=np.arange(STEPS) // 50)
    training = replace(context.summary.training, per_step_s={"other": 0.0})
    assert not only(replace(with_summary(context, training=training), steps=steps)).of_steps


BACKWARD = hot_line("backward", site="data.py:30")


@pytest.mark.parametrize(
    ("line_share", "others", "is_reported"),
    [
        (0.3, [BACKWARD], False),
        (0.8, [BACKWARD], True),
        (0.3, [replace(BACKWARD, function="train")], True),
        (0.3, [], True),
    ],
)
def test_statements_of_the_loop_itself_count_where_one_of_them_takes_much(
    line_share: float, others: list[HotLine], is_reported: bool
) -> None:
    context = case_of(Planted(workers=2, fetch_s=0.002, compute_s=0.02), parts={"other": 0.7})
    lines = [hot_line("other", line_share=line_share), *others]
    assert reported(with_summary(context, part_lines=lines)) == ["python_in_loop"] * is_reported


@pytest.mark.parametrize(("each_us", "is_reported"), [(40.0, False), (1.0, True)])
def test_what_may_be_trainprofs_own_time_is_no_finding(each_us: float, is_reported: bool) -> None:
    quick = Planted(workers=2, fetch_s=0.0001, compute_s=0.0002)
    context = case_of(quick, parts={"other": 0.02})  # 100 us a step
    overhead = replace(context.summary.overhead, per_step_us=each_us)
    training = replace(context.summary.training, steps=STEPS)
    context = with_summary(context, overhead=overhead, training=training)
    assert reported(context) == ["python_in_loop"] * is_reported


@pytest.mark.parametrize(
    ("called", "backward_s", "line", "is_reported"),
    [
        (1.0, 0.01, {"torch_share": 0.1}, True),
        (0.6, 0.01, {"torch_share": 0.1}, True),
        (0.0, 0.01, {"torch_share": 0.1}, False),  # a model of functions
        (0.4, 0.01, {"torch_share": 0.1}, False),
        (1.0, 0.8, {"torch_share": 0.1}, False),  # functions, and a module among them
        (1.0, 0.01, {"torch_share": 0.9}, False),
        (1.0, 0.01, {"torch_share": None}, False),
        (1.0, 0.01, {"torch_share": 0.1, "is_end": True}, False),
        (1.0, 0.01, {"torch_share": 0.1, "share": 0.2}, False),
    ],
)
def test_python_beside_a_tiny_model_counts_where_steps_call_modules(
    called: float, backward_s: float, line: dict[str, Any], is_reported: bool
) -> None:
    context = case_of(parts={"other": 5.0, "backward": backward_s})
    training = {**context.training, "forward": 0.01}
    forward = np.where(np.arange(STEPS) < called * STEPS, 50_000, 0)
    steps = replace(context.steps, per_step={**context.steps.per_step, "forward": forward})
    context = replace(context, training=training, training_s=sum(training.values()), steps=steps)
    context = with_summary(context, part_lines=[hot_line("other", **line)])
    assert (finding_of("python_in_loop", context) is not None) is is_reported


def test_less_python_gains_nothing_where_workers_do_not_keep_up() -> None:
    # The step is as long as the workers need for a batch; its Python would only become waiting.
    busy = Planted(workers=2, fetch_s=0.04, running=1.0, compute_s=0.019, cores=3)
    assert finding_of("python_in_loop", case_of(busy, parts={"other": 1.0})) is None


# -- a library's loop

LIGHTNING = TorchSettings(trains_by_lightning=True)
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


@pytest.mark.parametrize(
    ("context", "site"),
    [
        pytest.param(fitted(BY_LIBRARY), "train.py:50", id="its own code"),
        pytest.param(
            fitted(replace(BY_LIBRARY, is_likely=True, is_end=True)), "train.py:50", id="likely"
        ),
        pytest.param(fitted(replace(BY_LIBRARY, share=0.2)), "train.py:50", id="little of it"),
        pytest.param(fitted(), "train.py:50", id="no line"),
        pytest.param(
            fitted(BY_LIBRARY, at("train.py:50", "optimizer"), settings=TorchSettings()),
            "train.py:50",
            id="a library without settings",
        ),
        pytest.param(fitted(BY_LIBRARY, built_by="transformers"), "train.py:50", id="a Trainer"),
        pytest.param(
            with_summary(
                fitted(settings=TorchSettings(), site="train.py:50", built_by="transformers"),
                part_lines=[BY_LIBRARY],
            ),
            "train.py:50",
            id="known by the loader that it makes",
        ),
    ],
)
def test_a_librarys_loop_is_named_where_it_is_called(context: RunContext, site: str) -> None:
    finding = only(context)
    assert (finding.id, finding.site) == ("python_in_loop", site)
    assert finding.evidence["library_at"] == "train.py:50"
    assert finding.cautions == []


@pytest.mark.parametrize(
    ("context", "site"),
    [
        pytest.param(
            fitted(at("hooks.py:3", called_from=["train.py:50"])), "hooks.py:3", id="a hook"
        ),
        pytest.param(fitted(at("train.py:53")), "train.py:53", id="a line of it"),
        pytest.param(
            fitted(BY_LIBRARY, at("train.py:51", "optimizer")), None, id="stepped elsewhere"
        ),
        pytest.param(
            fitted(at("train.py:49", "data_wait")), None, id="no line, batches taken elsewhere"
        ),
        *(
            pytest.param(
                with_summary(
                    fitted(settings=TorchSettings(), site=site, built_by=built_by),
                    part_lines=[BY_LIBRARY],
                ),
                "train.py:50",
                id=f"a loader of {site} by {built_by}",
            )
            for site, built_by in (("train.py:20", "transformers"), ("train.py:50", None))
        ),
    ],
)
def test_a_loop_of_the_users_own_is_no_librarys(context: RunContext, site: str | None) -> None:
    finding = only(context)
    assert (finding.site, finding.evidence["library_at"]) == (site, None)


def test_a_line_of_backward_alone_shows_no_library() -> None:
    context = fitted()
    backward = [line for line in context.summary.part_lines if line.part == "backward"]
    assert only(with_summary(context, part_lines=backward)).site is None


def test_little_of_a_librarys_loop_is_not_reported() -> None:
    assert reported(fitted(BY_LIBRARY, other_s=0.3)) == []


def test_what_is_saved_in_a_librarys_loop_is_not_its_python() -> None:
    """All of a step is called at the one line."""
    context = fitted(BY_LIBRARY)
    saving = Checkpoints(saves=4, save_s=0.5, site="train.py:50")
    training = {**context.training, "checkpoint": 0.5}
    rules = reported(replace(context, checkpoints=saving, training=training))
    assert set(rules) == {"python_in_loop", "slow_checkpoints"}
