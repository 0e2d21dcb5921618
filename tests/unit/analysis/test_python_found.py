"""Python code in the loop, and threads beside it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from support.cases import STEPS, Planted, case_of
from support.found import found, hot_line, minded, only

from trainprof.analysis.code_figures import HotLine
from trainprof.analysis.diagnosis.case import Case
from trainprof.analysis.diagnosis.diagnose import diagnose
from trainprof.analysis.diagnosis.together import together
from trainprof.analysis.finding import Finding
from trainprof.analysis.pipeline_scenario import Interval


@pytest.mark.parametrize(("backward_s", "is_long"), [(2.0, False), (4.0, True)])
def test_a_loss_in_python_has_its_share_of_a_long_backward(
    backward_s: float, is_long: bool
) -> None:
    healthy = Planted(workers=2, fetch_s=0.002, compute_s=1.0 / STEPS)  # the forward's
    case = case_of(healthy, parts={"other": 2.0, "backward": backward_s})
    ledger = replace(case.summary.ledger, other_by_place={"between forward and backward": 2.0})
    lines = [hot_line("other")]
    summary = replace(case.summary, ledger=ledger, part_lines=lines, loss_in_loop_s=0.0)
    finding = only(replace(case, summary=summary))
    assert finding.id == "python_in_loop"
    told = [one for one in finding.also if "as long as forward" in one]
    assert bool(told) is is_long
    # What makes a loss cannot be left out of some steps.
    assert finding.advice.endswith(": make it cheaper") is is_long
    assert ("less often" in finding.advice) is not is_long
    assert any("less often" in one for one in finding.cautions) is not is_long
    assert finding.evidence["left_out_as_our_own_s"] >= 0


@pytest.mark.parametrize("loss_s", [0.0, 0.1])
def test_what_may_be_a_loss_of_torch_functions_is_no_python_where_too_few_looks_tell(
    loss_s: float,
) -> None:
    healthy = Planted(workers=2, fetch_s=0.002, compute_s=1.0 / STEPS)
    case = case_of(healthy, parts={"other": 2.0, "backward": 2.0, "loss": loss_s})
    ledger = replace(case.summary.ledger, other_by_place={"between forward and backward": 1.9})
    lines = [replace(hot_line("other"), is_likely=True)]
    summary = replace(case.summary, ledger=ledger, part_lines=lines)
    told = found(replace(case, summary=summary))
    # Where a loss was seen, it is no other.
    assert bool(told) is (loss_s > 0)


def test_what_sleep_waits_for_may_give_no_more_to_more_workers() -> None:
    """A lock or a rate limit looks like a server that answers everybody at once."""
    asleep = only(case_of(Planted(workers=1, fetch_s=0.06, running=0.3, compute_s=0.01)))
    assert (asleep.id, asleep.is_at_most) == ("too_few_workers", True)
    assert asleep.predicted_speedup is not None
    assert asleep.predicted_speedup[0] == 1.0
    busy = only(case_of(Planted(workers=1, fetch_s=0.06, running=0.7, compute_s=0.01)))
    assert (busy.id, busy.is_at_most) == ("too_few_workers", False)


@pytest.mark.parametrize("is_in_steps", [True, False])
def test_python_that_comes_now_and_then_is_no_matter_of_steps(is_in_steps: bool) -> None:
    """As behind an evaluation: the loader is not played again without it."""
    case = case_of(Planted(workers=2, fetch_s=0.002, compute_s=0.01), parts={"other": 1.0})
    training = case.summary.training
    if not is_in_steps:
        training = replace(training, per_step_s={"other": 0.1 / training.steps})
    summary = replace(case.summary, training=training, part_lines=[hot_line("other")])
    finding = only(replace(case, summary=summary))
    assert is_in_steps or not finding.of_steps
    where = "between the parts of a step" if is_in_steps else "between steps, now and then,"
    assert finding.title.startswith(f"Python code {where} takes 9")


@pytest.mark.parametrize(
    ("once_s", "told"),
    [
        (None, "now and then, takes 1.98 s"),
        (0.2, "now and then, takes 1.78 s"),
        # What is left may lie in usual steps.
        (1.2, "between the parts of a step takes 776 ms"),
        (1.9, None),
        (3.0, None),
    ],
)
def test_python_that_comes_but_once_is_taken_off(once_s: float | None, told: str | None) -> None:
    """As code that is compiled by its first call, which no change of the loop saves."""
    case = case_of(Planted(workers=2, fetch_s=0.002, compute_s=0.01), parts={"other": 2.0})
    training = replace(
        case.summary.training, per_step_s={"other": 0.6 / case.summary.training.steps}
    )
    line = replace(hot_line("other"), line_share=0.9)
    summary = replace(case.summary, training=training, part_lines=[line], once_in_loop_s=once_s)
    case = replace(case, summary=summary)
    if told is None:
        assert found(case) == []
        return
    finding = only(case)
    assert finding.id == "python_in_loop"
    assert told in finding.title
    assert finding.evidence["left_out_as_once_s"] == (once_s or 0.0)
    assert finding.recoverable_s == pytest.approx(finding.evidence["python_s"])


@pytest.mark.parametrize(("once_s", "is_sure"), [(0.0, True), (0.5, True), (1.1, False)])
def test_where_most_python_is_may_be_where_some_came_once(once_s: float, is_sure: bool) -> None:
    case = case_of(Planted(workers=2, fetch_s=0.002, compute_s=0.01), parts={"other": 2.0})
    places = {"after the update": 1.5, "between backward and update": 0.5}
    ledger = replace(case.summary.ledger, other_by_place=places)
    summary = replace(
        case.summary, ledger=ledger, part_lines=[hot_line("other")], once_in_loop_s=once_s
    )
    finding = only(replace(case, summary=summary))
    assert ("most of it after the update" in finding.title) is is_sure
    assert ("most of it" in finding.title) is is_sure


def test_what_grows_makes_the_halves_of_a_run_differ_and_is_no_noise() -> None:
    healthy = Planted(workers=2, fetch_s=0.002, compute_s=0.01)
    case = case_of(healthy, parts={"other": 0.5}, halves={"other": (0.1, 1.9)})
    summary = replace(case.summary, part_lines=[hot_line("other")])
    noisy = replace(case, summary=summary, noise=0.3)
    assert "python_in_loop" not in found(noisy)
    [passed] = [x for x in diagnose(noisy).passed_over if x.finding.id == "python_in_loop"]
    assert (passed.why, passed.least_gain) == ("noise", 0.3)
    grows = np.linspace(0, 10e6, len(case.steps)).astype(np.int64)
    wall = grows + int(10e6)
    steps = replace(
        case.steps,
        wall_ns=wall,
        per_step=case.steps.per_step | {"other": grows},
        candidates=np.ones(len(wall), dtype=bool),
    )
    finding = next(one for one in diagnose(replace(noisy, steps=steps)).findings)
    assert finding.id == "python_in_loop"
    assert any("it grows as training goes on" in told for told in finding.also)


@pytest.mark.parametrize(
    ("at", "where"),
    [
        (slice(50, None, 50), "between epochs (333 ms each time) takes 976 ms"),
        (slice(25, None, 50), "between steps, now and then, takes 976 ms"),
        (slice(50, None, 25), "between epochs (167 ms each time) and between the parts of a step"),
    ],
)
def test_python_between_epochs_is_told_as_such(at: slice, where: str) -> None:
    case = case_of(Planted(workers=2, fetch_s=0.002, compute_s=0.01), parts={"other": 1.0})
    spent = np.zeros(len(case.steps), dtype=np.int64)
    spent[at] = int(1e9) // len(range(*at.indices(len(spent))))
    steps = replace(
        case.steps,
        per_step=case.steps.per_step | {"other": spent},
        epoch_of=np.arange(len(spent)) // 50,
    )
    training = replace(case.summary.training, per_step_s={"other": 0.0})
    line = replace(hot_line("other"), share=0.9)
    summary = replace(case.summary, training=training, part_lines=[line])
    finding = only(replace(case, summary=summary, steps=steps))
    assert where in finding.title


@pytest.mark.parametrize(
    ("first_share", "once_s", "where"),
    [
        (0.9, 0.0, "between the parts of the first 80 steps takes 976 ms"),
        (0.5, 0.0, "between steps, now and then, takes 976 ms"),
        # What is left of them is no more than elsewhere.
        (0.8, 0.6, "between steps, now and then, takes 376 ms"),
    ],
)
def test_python_of_a_first_phase_is_told_as_such(
    first_share: float, once_s: float, where: str
) -> None:
    case = case_of(Planted(workers=2, fetch_s=0.002, compute_s=0.01), parts={"other": 1.0})
    spent = np.zeros(len(case.steps), dtype=np.int64)
    spent[:80] = int(first_share * 1e9) // 80
    spent[100:190:9] = int((1 - first_share) * 1e9) // 10
    steps = replace(
        case.steps,
        per_step=case.steps.per_step | {"other": spent},
        steady=replace(case.steps.steady, warmup=80),
    )
    training = replace(case.summary.training, per_step_s={"other": 0.0})
    summary = replace(
        case.summary, training=training, part_lines=[hot_line("other")], once_in_loop_s=once_s
    )
    finding = only(replace(case, summary=summary, steps=steps))
    assert where in finding.title


def test_python_in_the_loop_is_named_by_line() -> None:
    line = hot_line("other")
    healthy = Planted(workers=2, fetch_s=0.002, compute_s=0.01)
    case = case_of(healthy, parts={"other": 1.0})
    case = replace(case, summary=replace(case.summary, part_lines=[line]))
    finding = only(case)
    assert finding.site == "data.py:12"
    assert finding.also == ["called from train.py:50"]


def with_a_loss(loss_s: float, *lines: HotLine) -> Case:
    """A run with 2 s of code between the parts of a step, so much of it a loss by torch."""
    case = case_of(Planted(workers=2, fetch_s=0.002, compute_s=0.01), parts={"other": 2.0})
    places = {"between forward and backward": loss_s + 0.1, "after the update": 1.9 - loss_s}
    ledger = replace(case.summary.ledger, other_by_place=places)
    summary = replace(case.summary, ledger=ledger, part_lines=list(lines), loss_in_loop_s=loss_s)
    return replace(case, summary=summary)


def test_a_loss_of_torchs_functions_is_no_python_code() -> None:
    loss = replace(hot_line("other"), torch_share=0.95, loss_share=0.95, seconds=1.9)
    assert found(with_a_loss(1.9, loss)) == []
    # What the line is in older runs, and one that holds the interpreter.
    assert found(with_a_loss(0.0, hot_line("other"))) == ["python_in_loop"]
    held = replace(hot_line("other"), torch_share=0.1, loss_share=0.1)
    finding = only(with_a_loss(0.0, held))
    assert finding.title.startswith("Python code between")
    assert "do it less often" in finding.advice


def test_the_line_that_grows_is_named_however_much_it_had_of_the_first_step() -> None:
    loss = replace(hot_line("other"), torch_share=0.95, loss_share=0.95, seconds=1.9)
    case = with_a_loss(1.9, loss)
    # Twice as much in the end: more than half of it is there from the start.
    mean_ns = 2e9 / case.summary.training.steps
    grows = np.linspace(0.6 * mean_ns, 1.4 * mean_ns, len(case.steps)).astype(np.int64)
    steps = replace(
        case.steps,
        wall_ns=grows + int(10e6),
        per_step=case.steps.per_step | {"other": grows, "backward": np.full_like(grows, 1e6)},
        candidates=np.ones(len(grows), dtype=bool),
    )
    finding = only(replace(case, steps=steps))
    assert finding.site == loss.site
    assert finding.evidence["left_out_as_loss_s"] > 0.5 * 1.9


@pytest.mark.parametrize("model_grows", [False, True])
def test_what_grows_while_the_model_does_not_is_no_loss(model_grows: bool) -> None:
    loss = replace(hot_line("other"), torch_share=0.95, loss_share=0.95, seconds=1.9)
    case = with_a_loss(1.9, loss)
    # From nothing to 20 ms a step.
    grows = np.linspace(0, 20e6, len(case.steps)).astype(np.int64)
    steps = replace(
        case.steps,
        wall_ns=grows + int(10e6),
        per_step=case.steps.per_step
        | {"other": grows, "backward": grows if model_grows else np.full_like(grows, 1e6)},
        candidates=np.ones(len(grows), dtype=bool),
    )
    told = found(replace(case, steps=steps))
    assert ("python_in_loop" in told) is not model_grows
    if not model_grows:
        finding = only(replace(case, steps=steps))
        assert finding.site == loss.site
        assert finding.evidence["left_out_as_loss_s"] == pytest.approx(0.0, abs=0.05)
        assert any("it grows as training goes on" in one for one in finding.also)
        assert "once an epoch" in finding.advice


@pytest.mark.parametrize(
    ("model_times", "is_told"),
    [
        pytest.param(8.0, False, id="as much: episodes that get longer"),
        pytest.param(1.7, True, id="by far less"),
        pytest.param(1.0, True, id="not at all"),
    ],
)
def test_what_grows_as_the_model_does_goes_over_no_more_than_that(
    model_times: float, is_told: bool
) -> None:
    case = case_of(Planted(workers=2, fetch_s=0.002, compute_s=0.01), parts={"other": 2.0})
    other, backward = (np.linspace(1, times, len(case.steps)) * 2e6 for times in (8.0, model_times))
    steps = replace(
        case.steps,
        wall_ns=(other + backward).astype(np.int64) + int(10e6),
        per_step=case.steps.per_step
        | {"other": other.astype(np.int64), "backward": backward.astype(np.int64)},
        candidates=np.ones(len(other), dtype=bool),
    )
    line = replace(hot_line("other"), torch_share=0.95, loss_share=0.0)
    summary = replace(case.summary, part_lines=[line])
    # Noise of either half is no matter: what grows is none.
    finding = only(replace(case, summary=summary, steps=steps, noise=0.3))
    assert finding.id == "python_in_loop"
    assert any("all that has been collected" in one for one in finding.also) is is_told
    assert ("all batches so far" in (finding.advice or "")) is is_told


def test_python_beside_a_loss_has_its_own_line_and_share() -> None:
    loss = replace(hot_line("other", 0.6), torch_share=0.95, loss_share=0.95, seconds=1.2)
    metric = HotLine(
        "other", "metrics.py:7", "rank", ["train.py:52"], 60, 0.36, 0.72, line_share=0.36
    )
    finding = only(with_a_loss(1.2, loss, metric))
    assert (finding.id, finding.site) == ("python_in_loop", "metrics.py:7")
    assert "takes 776 ms" in finding.title  # some of it is trainprof's own
    assert "most of it after the update" in finding.title
    assert "this line, in rank(), takes 93 % of it: do it less often" in finding.advice
    assert "doing it less often changes what is learned: make it cheaper" in minded(finding)
    assert finding.evidence["left_out_as_loss_s"] == 1.2


def test_a_loss_in_a_closure_is_taken_off_what_lies_there() -> None:
    closure, after = "in the closure that optimizer.step calls", "after the update"
    case = with_a_loss(1.2, replace(hot_line("other"), torch_share=0.1, loss_share=0.1))
    ledger = replace(case.summary.ledger, other_by_place={closure: 1.3, after: 0.7})
    summary = replace(case.summary, ledger=ledger, loss_by_place={closure: 1.2})
    finding = only(replace(case, summary=summary))
    assert f"most of it {after}" in finding.title
    assert finding.evidence["by_place_s"] == {closure: pytest.approx(0.1), after: 0.7}


def test_an_average_of_weights_is_said_to_be_torchs() -> None:
    average = replace(hot_line("other"), torch_share=0.9, loss_share=0.0)
    finding = only(with_a_loss(0.0, average))
    assert finding.id == "python_in_loop"
    assert finding.title.startswith("what the loop computes by torch's functions")
    assert "Python code" not in finding.title
    assert "do it less often" not in finding.advice
    assert finding.cautions == []


@pytest.mark.parametrize(
    ("looks", "is_at_least", "told"),
    [
        (100, False, "decode(), around this line, takes 90 % of it: "),
        (100, True, "decode(), around this line, takes at least 83 % of it: "),
        (10, True, "decode(), around this line, takes at least 61 % of it: "),
    ],
)
def test_of_a_function_whose_lines_looks_do_not_tell_apart_none_is_said_to_take_a_share(
    looks: int, is_at_least: bool, told: str
) -> None:
    of_function = replace(
        hot_line("other"), line_share=0.3, is_at_least=is_at_least, is_line_known=False, looks=looks
    )
    case = case_of(Planted(workers=2, fetch_s=0.002), parts={"other": 2.0})
    finding = only(replace(case, summary=replace(case.summary, part_lines=[of_function])))
    assert told in finding.advice
    assert "30 %" not in finding.advice
    assert finding.evidence["line_share"] is None
    assert not any("without that line" in one for one in finding.also)


def test_what_is_met_there_as_the_models_own_work_is_only_to_be_cheaper() -> None:
    line = replace(hot_line("other"), torch_share=0.4, loss_share=0.4)
    case = case_of(Planted(workers=2, fetch_s=0.002), parts={"other": 2.0})
    finding = only(replace(case, summary=replace(case.summary, part_lines=[line])))
    assert finding.advice.endswith(": make it cheaper")


@pytest.mark.parametrize(
    ("of_line", "is_at_least", "told"),
    [
        (None, False, "this line, in decode(), takes 90 % of it: "),  # an older run
        (0.85, False, "this line, in decode(), takes 85 % of it: "),
        (0.3, False, "decode() takes 90 % of it, this line 30 %: "),
        (0.3, True, "decode() takes at least 83 % of it, this line at least 22 %: "),
    ],
)
def test_a_line_is_not_said_to_take_what_its_whole_function_takes(
    of_line: float | None, is_at_least: bool, told: str
) -> None:
    line = replace(hot_line("other"), line_share=of_line, is_at_least=is_at_least)
    case = case_of(Planted(workers=2, fetch_s=0.002), parts={"other": 2.0})
    finding = only(replace(case, summary=replace(case.summary, part_lines=[line])))
    assert told in finding.advice
    alone = [one for one in finding.also if one.startswith("without that line alone")]
    assert bool(alone) is (of_line is not None and not is_at_least)
    if of_line == 0.3 and alone:
        # 100 looks at 90 % of it: 30 % may be 39 %; what remains may get faster by a quarter.
        kept = 1 - 0.387 * 2.0 / case.training_s
        most = 1 / kept / (1 - 0.25 * (1 - kept))
        assert f"up to about {most:.2f} x as fast" in alone[0]
    making = replace(line, part="making batches")
    planted = Planted(fetch_s=0.03, compute_s=0.01)
    planted.loader = replace(planted.loader, hot_lines=[making])
    sentence = only(case_of(planted)).also[-1]
    assert ("with the rest of that function" in sentence) is (of_line == 0.3)
    # Of a batch of 40 ms, 30 in the making.
    times = {0.3: "1.3", 0.85: "2.8", 0.9: "3.1"}[of_line or line.share]
    or_more = ", or more" if is_at_least else ""
    assert sentence.endswith(
        f": without that line, steps would be about {times} x as fast{or_more}"
    )


def test_python_that_is_only_known_to_end_somewhere_has_no_line() -> None:
    line = replace(hot_line("other"), is_likely=True, is_end=True)
    case = case_of(Planted(workers=2, fetch_s=0.002), parts={"other": 2.0})
    finding = only(replace(case, summary=replace(case.summary, part_lines=[line])))
    assert (finding.id, finding.site) == ("python_in_loop", None)
    assert finding.also == [
        "most of it ends at data.py:12 (decode): what takes long stands there or before it"
    ]


def test_statements_of_the_loop_itself_count_where_one_of_them_is_worth_a_look() -> None:
    case = case_of(Planted(workers=2, fetch_s=0.002, compute_s=0.02), parts={"other": 0.7})
    backward = replace(hot_line("backward"), site="data.py:30")

    def ids(line: HotLine, *others: HotLine) -> list[str]:
        return found(replace(case, summary=replace(case.summary, part_lines=[line, *others])))

    scattered = replace(hot_line("other"), line_share=0.3)
    assert ids(scattered, backward) == []
    assert ids(replace(scattered, line_share=0.8), backward) == ["python_in_loop"]
    assert ids(scattered, replace(backward, function="train")) == ["python_in_loop"]
    assert ids(scattered) == ["python_in_loop"]


@pytest.mark.parametrize(
    ("line", "is_told"),
    [
        ({"line_share": 0.9}, True),
        ({"line_share": 0.5}, False),
        ({"line_share": None}, False),
        ({"line_share": 0.9, "is_line_known": False}, False),
        ({"line_share": 0.9, "is_likely": True}, False),
        ({"line_share": 0.9, "is_end": True}, False),
    ],
)
def test_a_line_that_takes_a_twentieth_is_told_where_it_is_certain(
    line: dict[str, Any], is_told: bool
) -> None:
    case = case_of(Planted(workers=2, fetch_s=0.002, compute_s=0.02), parts={"other": 0.35})
    assert case.share("other") == pytest.approx(0.08, abs=0.005)
    summary = replace(case.summary, part_lines=[replace(hot_line("other"), **line)])
    assert ("python_in_loop" in found(replace(case, summary=summary))) is is_told


def test_less_python_gains_nothing_where_workers_do_not_keep_up() -> None:
    # The step is as long as the workers need for a batch; its Python would only become waiting.
    busy = Planted(workers=2, fetch_s=0.04, running=1.0, compute_s=0.019, cores=3)
    assert "python_in_loop" not in found(case_of(busy, parts={"other": 1.0}))


@pytest.mark.parametrize("planted", [(), (Planted(workers=2, fetch_s=0.002, compute_s=0.01),)])
def test_evaluation_without_a_loader_is_named_by_who_calls_for_it(
    planted: tuple[Planted, ...],
) -> None:
    computing = HotLine("forward", "model.py:8", "forward", ["train.py:30", "train.py:60"], 9, 1, 1)
    called = ["data.py:30", "train.py:41", "train.py:60"]
    evaluating = replace(hot_line("evaluation"), called_from=called)
    case = case_of(*planted, parts={"evaluation": 4.0, "forward": 2.0})
    summary = replace(case.summary, part_lines=[computing, evaluating])
    finding = only(replace(case, summary=summary))
    assert (finding.id, finding.site) == ("slow_validation", "train.py:41")
    assert "evaluation takes 4.00 s" in finding.title
    assert finding.also == ["most of it goes to data.py:12 (decode): 90 % of it"]
    # A policy's forwards look the same, also where a loader goes over what it collected.
    assert "a policy that collects experience" in minded(finding)
    nameless = only(replace(case, summary=replace(summary, part_lines=[computing])))
    assert (nameless.id, nameless.site, nameless.also) == ("slow_validation", None, [])
    # Without a look at the other parts, train.py:60 may call for all of them.
    alone = only(replace(case, summary=replace(summary, part_lines=[evaluating])))
    assert (alone.site, alone.also) == ("data.py:12", [])
    assert found(case_of(*planted, parts={"evaluation": 0.1, "forward": 2.0})) == []


def test_less_python_beside_full_workers_gives_nothing_together_either() -> None:
    # Steps of 20 ms, half of them Python; with two workers a batch comes each 10 ms, no sooner.
    planted = Planted(fetch_s=0.02, compute_s=0.02, running=1.0, cores=2)
    case = case_of(planted, parts={"checkpoint": 0.5})
    told = diagnose(case).findings
    everything = together(case, told)
    assert everything is not None
    alone = max(one.predicted_speedup[1] for one in told if one.predicted_speedup)
    assert everything < alone * 1.5


def test_a_loop_of_several_ranks_may_wait_for_the_others() -> None:
    healthy = Planted(workers=2, fetch_s=0.002, compute_s=0.01)
    case = case_of(healthy, parts={"other": 1.0})
    assert found(case) == ["python_in_loop"]
    run = replace(case.summary.run, world_size=2)
    assert found(replace(case, summary=replace(case.summary, run=run))) == []


def test_a_worker_that_computes_answers_late() -> None:
    planted = Planted(
        workers=2,
        fetch_s=0.07,
        running=1.0,
        compute_s=0.005,
        cores=2,
        receive_s=Interval.exactly(0.02),
        delivery_s=0.02,
    )
    planted.loader = replace(planted.loader, receive_s=0.02 * STEPS, receive_cpu_s=0.001 * STEPS)
    assert found(case_of(planted)) == ["saturated_cpu"]


def test_a_line_that_waits_for_another_thread_is_not_told_to_do_less() -> None:
    healthy = Planted(workers=2, fetch_s=0.002, compute_s=0.01)
    case = case_of(healthy, parts={"other": 1.0})
    line = replace(hot_line("other"), waits_share=0.9)
    finding = only(replace(case, summary=replace(case.summary, part_lines=[line])))
    assert (finding.id, finding.site) == ("python_in_loop", "data.py:12")
    assert finding.title.startswith("between the parts of a step the loop waits for another thread")
    assert "what it waits for has to get quicker" in finding.advice
    assert "most of that may have to stay" in " ".join(finding.also)


def test_what_other_processes_compute_meanwhile_has_to_stay() -> None:
    line = replace(hot_line("other"), waits_share=0.9)
    alone = case_of(Planted(compute_s=0.01, fetch_s=0.0001), parts={"other": 2.0})
    trained_s = alone.training_s

    def told(role: str, *percents: float, cores: float = 2.0) -> Finding:
        processes = [
            {"role": role, "cpu_percent": {"mean": one}, "first_s": 0.0, "last_s": trained_s}
            for one in percents
        ]
        assert alone.summary.system is not None
        cpu = alone.summary.system.cpu | {"cores_usable": cores}
        system = replace(alone.summary.system, processes=processes, cpu=cpu)
        return only(
            replace(alone, summary=replace(alone.summary, part_lines=[line], system=system))
        )

    assert "may have to stay" in " ".join(told("main", 100.0).also)
    both = told("child", 20.0, 20.0, 1.0)  # the third helps them
    assert "2 processes that the script started computed for" in " ".join(both.also)
    assert both.recoverable_s == pytest.approx(2.0 - 0.2 * trained_s, abs=0.05)
    one = told("child", 40.0)
    assert "a process that the script started" in " ".join(one.also)
    assert one.recoverable_s == pytest.approx(2.0 - 0.4 * trained_s, abs=0.05)


def test_what_may_be_trainprofs_own_time_is_no_finding() -> None:
    healthy = Planted(workers=2, fetch_s=0.0001, compute_s=0.0002)
    case = case_of(healthy, parts={"other": 0.02})  # 100 us a step
    own = replace(case.summary.overhead, per_step_us=40.0)
    training = replace(case.summary.training, steps=STEPS)
    summary = replace(case.summary, overhead=own, training=training)
    assert found(replace(case, summary=summary)) == []
    cheap = replace(summary, overhead=replace(own, per_step_us=1.0))
    assert found(replace(case, summary=cheap)) == ["python_in_loop"]


def test_a_model_of_functions_is_no_python_in_the_loop() -> None:
    case = case_of(Planted(workers=2, fetch_s=0.002), parts={"other": 1.0})
    functional = {**case.training, "forward": 0.0, "backward": case.training["forward"]}
    assert found(replace(case, training=functional)) == []


@pytest.mark.parametrize(
    ("called", "backward_s", "line", "is_told"),
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
def test_python_beside_a_tiny_model_is_told_where_steps_call_modules(
    called: float, backward_s: float, line: dict[str, Any], is_told: bool
) -> None:
    case = case_of(parts={"other": 5.0, "backward": backward_s})
    training = {**case.training, "forward": 0.01}
    forward = np.where(np.arange(len(case.steps)) < called * len(case.steps), 50_000, 0)
    steps = replace(case.steps, per_step={**case.steps.per_step, "forward": forward})
    summary = replace(case.summary, part_lines=[replace(hot_line("other"), **line)])
    case = replace(case, training=training, training_s=sum(training.values()))
    told = found(replace(case, steps=steps, summary=summary))
    assert ("python_in_loop" in told) is is_told


def test_where_a_librarys_loop_is_called_is_not_the_line_to_change() -> None:
    case = case_of(Planted(workers=2, fetch_s=0.002), parts={"other": 0.3})
    lines = [hot_line("other"), hot_line("forward")]
    library = replace(case, summary=replace(case.summary, part_lines=lines))
    assert found(library) == []
    much = case_of(Planted(workers=2, fetch_s=0.002), parts={"other": 1.0})
    finding = only(replace(much, summary=replace(much.summary, part_lines=lines)))
    # Forward and what follows may be one line of a loop of the user's own.
    assert (finding.site, finding.evidence["library_at"]) == (None, None)
