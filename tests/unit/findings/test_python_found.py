"""Python code in the loop, beside a loss of torch's functions."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from support.cases import STEPS, Planted, case_of
from support.found import found, hot_line, only

from trainprof.analysis.pipeline.bounds import Interval
from trainprof.analysis.summary.code import HotLine
from trainprof.findings.combined_speedup import together
from trainprof.findings.diagnose import diagnose
from trainprof.findings.run_context import RunContext

BEFORE, AFTER = "between forward and backward", "after the update"
CLOSURE = "in the closure that optimizer.step calls"
LOSS = {"torch_share": 0.95, "loss_share": 0.95, "seconds": 1.9}


def with_python(
    line: dict[str, Any] | None = None, other_s: float = 2.0, **changes: Any
) -> RunContext:
    """A run with code between the parts of a step, most of it at data.py:12."""
    context = case_of(Planted(workers=2, fetch_s=0.002, compute_s=0.01), parts={"other": other_s})
    lines = [] if line is None else [replace(hot_line("other"), **line)]
    places = changes.pop("places", {AFTER: other_s})
    ledger = replace(context.summary.ledger, other_by_place=places)
    return replace(
        context, summary=replace(context.summary, ledger=ledger, part_lines=lines, **changes)
    )


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
            with_python({"torch_share": 0.9}, loss_in_loop_s=0.0), "data.py:12", 1.98, id="average"
        ),
        pytest.param(
            with_python({"is_likely": True}, places={BEFORE: 1.9}), None, None, id="may be a loss"
        ),
        pytest.param(
            with_python({}, loss_in_loop_s=1.2, loss_by_place={CLOSURE: 1.2}),
            "data.py:12",
            0.78,
            id="a loss in a closure",
        ),
        pytest.param(with_python({"line_share": 0.9}, 0.2), "data.py:12", 0.18, id="7 %, certain"),
        pytest.param(with_python({"line_share": 0.5}, 0.2), None, None, id="7 %, not one line"),
        pytest.param(with_python({"is_likely": True}, 0.2), None, None, id="7 %, not certain"),
    ],
)
def test_python_in_the_loop_is_found(
    context: RunContext, site: str | None, python_s: float | None
) -> None:
    if python_s is None:
        assert found(context) == []
        return
    finding = only(context)
    assert (finding.id, finding.site) == ("python_in_loop", site)
    assert finding.evidence["python_s"] == pytest.approx(python_s, abs=0.02)
    assert finding.recoverable_s == pytest.approx(python_s, abs=0.02)
    assert finding.is_at_most


@pytest.mark.parametrize(
    ("line", "place", "is_less_often"),
    [
        ({}, AFTER, True),
        ({"loss_share": 0.4}, AFTER, False),
        ({"torch_share": 0.9}, AFTER, False),
        ({"waits_share": 0.9}, AFTER, False),
    ],
)
def test_only_what_training_does_not_learn_from_can_be_done_less_often(
    line: dict[str, Any], place: str, is_less_often: bool
) -> None:
    finding = only(with_python(line, loss_in_loop_s=0.0, places={place: 2.0}))
    assert ("do it less often" in finding.advice) is is_less_often
    assert bool(finding.cautions) is is_less_often


def test_python_beside_a_loss_has_its_own_line_and_share() -> None:
    context = with_python({**LOSS, "share": 0.6, "seconds": 1.2}, loss_in_loop_s=1.2)
    metric = HotLine(
        "other", "metrics.py:7", "rank", ["train.py:52"], 60, 0.36, 0.72, line_share=0.36
    )
    lines = [*context.summary.part_lines, metric]
    finding = only(replace(context, summary=replace(context.summary, part_lines=lines)))
    assert (finding.id, finding.site) == ("python_in_loop", "metrics.py:7")
    assert finding.evidence["left_out_as_loss_s"] == 1.2
    assert finding.evidence["line_share"] == pytest.approx(0.93, abs=0.01)


@pytest.mark.parametrize(
    ("at", "when"),
    [(slice(50, None, 50), "between epochs"), (slice(25, None, 50), "now and then")],
)
def test_python_that_no_usual_step_has_is_no_matter_of_steps(at: slice, when: str) -> None:
    context = with_python({}, 1.0)
    spent = np.zeros(len(context.steps), dtype=np.int64)
    spent[at] = int(1e9) // len(range(*at.indices(len(spent))))
    per_step = context.steps.per_step | {"other": spent}
    steps = replace(context.steps, per_step=per_step, epoch_of=np.arange(len(spent)) // 50)
    training = replace(context.summary.training, per_step_s={"other": 0.0})
    finding = only(
        replace(context, summary=replace(context.summary, training=training), steps=steps)
    )
    assert not finding.of_steps
    assert when in finding.title


def test_statements_of_the_loop_itself_count_where_one_of_them_is_worth_a_look() -> None:
    context = case_of(Planted(workers=2, fetch_s=0.002, compute_s=0.02), parts={"other": 0.7})
    backward = replace(hot_line("backward"), site="data.py:30")

    def ids(line: HotLine, *others: HotLine) -> list[str]:
        return found(replace(context, summary=replace(context.summary, part_lines=[line, *others])))

    scattered = replace(hot_line("other"), line_share=0.3)
    assert ids(scattered, backward) == []
    assert ids(replace(scattered, line_share=0.8), backward) == ["python_in_loop"]
    assert ids(scattered, replace(backward, function="train")) == ["python_in_loop"]
    assert ids(scattered) == ["python_in_loop"]


def test_what_may_be_trainprofs_own_time_is_no_finding() -> None:
    healthy = Planted(workers=2, fetch_s=0.0001, compute_s=0.0002)
    context = case_of(healthy, parts={"other": 0.02})  # 100 us a step
    own = replace(context.summary.overhead, per_step_us=40.0)
    training = replace(context.summary.training, steps=STEPS)
    summary = replace(context.summary, overhead=own, training=training)
    assert found(replace(context, summary=summary)) == []
    cheap = replace(summary, overhead=replace(own, per_step_us=1.0))
    assert found(replace(context, summary=cheap)) == ["python_in_loop"]


@pytest.mark.parametrize(
    ("called", "backward_s", "line", "is_found"),
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
def test_python_beside_a_tiny_model_is_found_where_steps_call_modules(
    called: float, backward_s: float, line: dict[str, Any], is_found: bool
) -> None:
    context = case_of(parts={"other": 5.0, "backward": backward_s})
    training = {**context.training, "forward": 0.01}
    forward = np.where(np.arange(len(context.steps)) < called * len(context.steps), 50_000, 0)
    steps = replace(context.steps, per_step={**context.steps.per_step, "forward": forward})
    summary = replace(context.summary, part_lines=[replace(hot_line("other"), **line)])
    context = replace(context, training=training, training_s=sum(training.values()))
    ids = found(replace(context, steps=steps, summary=summary))
    assert ("python_in_loop" in ids) is is_found


def test_where_a_librarys_loop_is_called_is_not_the_line_to_change() -> None:
    context = case_of(Planted(workers=2, fetch_s=0.002), parts={"other": 0.3})
    lines = [hot_line("other"), hot_line("forward")]
    library = replace(context, summary=replace(context.summary, part_lines=lines))
    assert found(library) == []
    much = case_of(Planted(workers=2, fetch_s=0.002), parts={"other": 1.0})
    finding = only(replace(much, summary=replace(much.summary, part_lines=lines)))
    # Forward and what follows may be one line of a loop of the user's own.
    assert (finding.site, finding.evidence["library_at"]) == (None, None)


def test_a_loop_of_several_ranks_may_wait_for_the_others() -> None:
    context = with_python({}, 1.0)
    run = replace(context.summary.run, world_size=2)
    assert found(replace(context, summary=replace(context.summary, run=run))) == []


def test_less_python_gains_nothing_where_workers_do_not_keep_up() -> None:
    # The step is as long as the workers need for a batch; its Python would only become waiting.
    busy = Planted(workers=2, fetch_s=0.04, running=1.0, compute_s=0.019, cores=3)
    assert "python_in_loop" not in found(case_of(busy, parts={"other": 1.0}))


def test_less_python_beside_full_workers_gives_nothing_together_either() -> None:
    # Steps of 20 ms, half of them Python; with two workers a batch comes each 10 ms, no sooner.
    planted = Planted(fetch_s=0.02, compute_s=0.02, running=1.0, cores=2)
    context = case_of(planted, parts={"checkpoint": 0.5})
    findings = diagnose(context).findings
    everything = together(context, findings)
    assert everything is not None
    alone = max(finding.predicted_speedup[1] for finding in findings if finding.predicted_speedup)
    assert everything < alone * 1.5


@pytest.mark.parametrize("planted", [(), (Planted(workers=2, fetch_s=0.002, compute_s=0.01),)])
def test_evaluation_without_a_loader_is_named_by_who_calls_for_it(
    planted: tuple[Planted, ...],
) -> None:
    computing = HotLine("forward", "model.py:8", "forward", ["train.py:30", "train.py:60"], 9, 1, 1)
    called = ["data.py:30", "train.py:41", "train.py:60"]
    evaluating = replace(hot_line("evaluation"), called_from=called)
    context = case_of(*planted, parts={"evaluation": 4.0, "forward": 2.0})
    # Without a sample of the other parts, train.py:60 may call for all of them.
    for lines, site in (
        ([computing, evaluating], "train.py:41"),
        ([computing], None),
        ([evaluating], "data.py:12"),
    ):
        finding = only(replace(context, summary=replace(context.summary, part_lines=lines)))
        assert (finding.id, finding.site) == ("slow_validation", site)
    assert found(case_of(*planted, parts={"evaluation": 0.1, "forward": 2.0})) == []


@pytest.mark.parametrize(("running", "is_at_most"), [(0.3, True), (0.7, False)])
def test_what_sleep_waits_for_may_give_no_more_to_more_workers(
    running: float, is_at_most: bool
) -> None:
    """A lock or a rate limit looks like a server that answers everybody at once."""
    finding = only(case_of(Planted(workers=1, fetch_s=0.06, running=running, compute_s=0.01)))
    assert (finding.id, finding.is_at_most) == ("too_few_workers", is_at_most)


def test_a_worker_that_computes_answers_late() -> None:
    planted = Planted(
        workers=2,
        fetch_s=0.07,
        running=1.0,
        compute_s=0.005,
        cores=2,
        receive_s=Interval.exactly(0.02),
    )
    planted.loader = replace(planted.loader, receive_s=0.02 * STEPS, receive_cpu_s=0.001 * STEPS)
    assert found(case_of(planted)) == ["saturated_cpu"]
