"""What to change: the finding, its line, the change, and what that would give."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from support import summaries

from trainprof.analysis.summary.code import Numerics
from trainprof.analysis.summary.device import Device
from trainprof.analysis.summary.finding import (
    COMES_ONCE,
    IN_NOISE,
    LIKELY,
    LITTLE,
    MAY_LOSE,
    MODELLED_WORKERS,
    SYMPTOM,
    Finding,
    PassedOver,
)
from trainprof.findings.catalogue import RULES, rule_named
from trainprof.report import markdown
from trainprof.report.page.finding_page import render_rule, render_why
from trainprof.report.page.findings import findings_section
from trainprof.report.text.gain_words import speedup_in_short, speedup_words
from trainprof.report.text.layout import Page

PAGE = Page(width=80, unicode=True, verbose=False)


def words(page: Page = PAGE, room: int | None = None, **changes: object) -> str:
    summary = replace(summaries.slow_loader(), **changes)  # type: ignore[arg-type]
    return "\n".join(line.plain for line in findings_section(summary, page, room))


def test_a_finding_says_where_what_and_how_much() -> None:
    told = words()
    assert told.startswith("1 serial_loading at train.py:41: the training process makes its")
    assert "  Change: DataLoader(..., num_workers=5, persistent_workers=True)" in told
    assert "Gives: steps 4.1 to 5.2 x as fast, the run 3.0 to 3.6 x (a model, not" in told
    assert "71 % of making a batch goes to data.py:52 (decode)." in told
    assert "Mind: random augmentation" in told


def test_what_cannot_be_exceeded_is_said_to_be_at_most() -> None:
    found = summaries.finding(is_at_most=True, predicted_speedup=[1.0, 1.3], run_speedup=[1.0, 1.2])
    told = "steps up to about 1.30 x as fast, the run 1.20 x"
    assert speedup_words(found) == f"{told} (a model, not measured: trainprof tune does)"
    # The model's all the same where something is to be done ahead of the workers.
    of_workers = replace(found, change={}, evidence={MODELLED_WORKERS: 4})
    assert speedup_words(of_workers) == f"{told} (a model, not measured)"
    nobody_knows = replace(found, change={}, evidence={}, is_tried_by_tune=False)
    told = "steps up to 1.30 x as fast; the run 1.20 x; not measured"
    assert speedup_words(nobody_knows) == told
    of_all = speedup_words(replace(nobody_knows, of_steps=False))
    assert of_all.startswith("training up to 1.30 x as fast; the run")


def at_most(name: str, likely: float, most: float, **changes: Any) -> str:
    found = summaries.finding(
        id=name,
        is_at_most=True,
        predicted_speedup=[1.0, most],
        run_speedup=[1.0, 1.9],
        **{"change": {}, "of_steps": False, "is_tried_by_tune": False, **changes},
        evidence={LIKELY: likely},
    )
    return speedup_words(found)


def test_what_goes_and_what_gets_faster_by_it_are_told_apart() -> None:
    # 1 / (1 - 0.63): the share that the finding's title tells.
    assert at_most("python_in_loop", 2.7, 3.2) == (
        "training about 2.7 x as fast if all of it went, up to about 3.2 x (what remains may "
        "speed up, too); the run 1.90 x; not measured"
    )
    near = "training about 2.7 x as fast if all of it went; the run 1.90 x; not measured"
    assert at_most("python_in_loop", 2.7, 2.75) == near
    by_looks = at_most("python_in_model", 2.7, 3.2)
    assert "went, up to about 3.2 x; the run up to 1.90 x; not measured" in by_looks
    evenly = "as fast if the cores could share all of it evenly, up to about"
    assert evenly in at_most("thread_count", 1.5, 1.8)
    tried = at_most("worker_restart", 2.0, 2.3, change={"persistent_workers": True})
    assert tried.endswith("; not measured")
    tried = at_most("worker_restart", 2.0, 2.3, is_tried_by_tune=True)
    assert tried.endswith("; not measured: trainprof tune does")


def test_an_estimate_is_told_as_one() -> None:
    told = "training likely 2.2 x as fast, up to about 3.8 x; the run up to 1.90 x; not measured"
    assert at_most("double_precision", 2.2, 3.8) == at_most("padded_batches", 2.2, 3.8) == told
    told = "training up to 2.2 x as fast; the run 1.90 x; not measured"
    assert at_most("unused_gradients", 2.2, 2.2) == told


def test_a_gain_in_few_words_is_that_of_what_goes() -> None:
    def told(name: str, likely: float) -> str:
        found = summaries.finding(
            id=name,
            is_at_most=True,
            predicted_speedup=[1.0, 3.2],
            change={},
            evidence={LIKELY: likely},
        )
        return speedup_in_short(found)

    assert told("python_in_loop", 2.7) == "steps up to 2.7 x as fast"
    assert told("double_precision", 2.7) == "steps likely 2.7 x as fast"
    assert told("double_precision", 3.2) == "steps up to 3.2 x as fast"


def test_what_comes_once_is_told_in_seconds() -> None:
    once = summaries.finding(evidence={COMES_ONCE: True}, recoverable_s=2.7)
    assert speedup_words(once) == speedup_in_short(once) == "up to 2.70 s, once a run"
    assert speedup_words(replace(once, recoverable_s=None)) == ""


def test_all_together_is_told_where_it_gives_more_than_the_best_alone() -> None:
    two = [summaries.finding(), summaries.finding(id="gc_pauses", predicted_speedup=[1.0, 1.1])]
    assert "All of these together: training up to about 5.4 x" in words(findings=two, together=5.4)
    assert "All of these" not in words(findings=two, together=5.3)
    once = replace(two[0], evidence={COMES_ONCE: True})
    assert "All of these" in words(findings=[*two[1:], once], together=1.2)


def test_tune_is_offered_only_for_what_it_can_change() -> None:
    told = speedup_words(summaries.finding())
    assert told.endswith("(a model, not measured: trainprof tune does)")
    assert speedup_words(summaries.finding(change={})).endswith("(a model, not measured)")
    by_hand = "(a model, not measured: trainprof compare of a rerun does)"
    found = summaries.finding(is_tried_by_tune=False)
    assert speedup_words(found).endswith(by_hand)
    assert speedup_words(replace(found, is_at_most=True)).endswith(by_hand)


def test_a_change_that_may_lose_says_so() -> None:
    found = summaries.finding(predicted_speedup=[0.8, 2.0])
    assert "it may as well lose" in speedup_words(found)
    assert "most likely" not in speedup_words(replace(found, evidence={}))
    known = replace(found, evidence={**found.evidence, LIKELY: 1.4})
    assert "0.8 to 2.0 x as fast, most likely 1.40 x, the run" in speedup_words(known)


@pytest.mark.parametrize("speedup", [None, [float("nan"), 2.0], [1.0]])
def test_a_gain_that_is_not_known_is_not_told(speedup: list[float] | None) -> None:
    assert speedup_words(summaries.finding(predicted_speedup=speedup)) == ""


def of_little(name: str, **changes: Any) -> Finding:
    """A finding that may give way to others."""
    little: dict[str, Any] = {"severity": "note", "predicted_speedup": [1.0, 1.05]}
    return summaries.finding(id=name, **little | changes)


def test_the_first_stands_and_those_of_little_gain_give_way() -> None:
    many = [of_little(f"rule_{number}") for number in range(7)]
    brief = words(room=6, findings=many, together=1.4)
    assert brief.startswith("1 rule_0")
    first, rest = brief.split("6 more findings ")
    assert "rule_1" not in first
    named = ", ".join(f"rule_{number}" for number in range(1, 7))
    told = f"({named}): --verbose All of these together: training up to about 1.40 x as fast."
    assert " ".join(rest.split()) == told
    assert words(findings=many).endswith("  2 more findings (rule_5, rule_6): --verbose")
    assert "7 rule_6" in words(replace(PAGE, verbose=True), findings=many)


@pytest.mark.parametrize(
    "worth",
    [{"severity": "warn", "predicted_speedup": None}, {"predicted_speedup": [1.0, 1.1]}],
    ids=["a warning", "a gain"],
)
def test_what_is_worth_a_change_is_told_with_it_whatever_room_there_is(
    worth: dict[str, Any],
) -> None:
    three = [summaries.finding(), of_little("second"), of_little("third", **worth)]
    told = words(room=1, findings=three)
    for number, name in ((2, "second"), (3, "third")):
        assert f"{number} {name} at train.py:41" in told
    assert told.count("Change: DataLoader(") == 3
    assert told.count("Gives:") == 1
    assert "more finding" not in told


def test_no_finding_is_told_without_its_change_and_what_may_break_by_it() -> None:
    two = [summaries.finding(), of_little("second", cautions=["rows come as a list"])]
    heights = set()
    for room in range(40):
        told = words(room=room, findings=two)
        _, _, second = told.partition("2 second")
        assert ("Change: " in second) == ("Mind: rows come as a list." in second) == bool(second)
        assert bool(second) != ("1 more finding (second): --verbose" in told)
        assert ("steps 1.00 to 1.05 x as fast" in " ".join(second.split())) == bool(second)
        heights.add(told.count("\n"))
    assert len(heights) == 3  # without it, in fewer words, whole


def test_each_is_told_before_one_is_told_whole() -> None:
    three = [summaries.finding(), of_little("second"), of_little("third")]
    whole = len(words(room=99, findings=three).splitlines())
    told = words(room=whole - 1, findings=three)
    assert told.count("Gives:") == 2
    assert "Gives:" not in told.split("3 third")[1]
    assert "Change:" in told.split("3 third")[1]


def test_nothing_found_says_from_which_gain_on_it_was_looked_for() -> None:
    healthy = summaries.healthy()
    told = words(findings=[], verdict=healthy.verdict, findings_from=0.03)
    first, rest = " ".join(told.split()).split(". ", 1)
    assert first == ("What to change: no cause was found that would gain over 3 %")
    assert rest.startswith("Not judged: computing itself (15 % of a step).")
    noisy = words(findings=[], findings_from=0.18)
    assert " ".join(noisy.split()).startswith(
        "What to change: no cause was found that would gain over 18 % (the halves of this run "
        "differ by 9 %: less would not show)."
    )
    few = replace(healthy.training, steady_steps=19)
    known = {"findings": [], "verdict": healthy.verdict, "findings_from": 0.03}
    assert words(**known, training=few) == ""
    assert words(findings=[], verdict=healthy.verdict) == ""  # of an older trainprof
    verbose = words(replace(PAGE, verbose=True), **known)
    verbose = " ".join(verbose.split())
    assert "Looked for: serial loading" in verbose


def test_what_no_rule_looks_into_is_said() -> None:
    healthy = summaries.healthy()
    known = {"findings": [], "verdict": healthy.verdict, "findings_from": 0.03}

    def told(device: str | None = None, **per_step_s: float) -> str:
        training = replace(healthy.training, per_step_s=per_step_s)
        run = replace(healthy.run, device=device)
        return " ".join(words(**known, training=training, run=run).split())

    both = told(forward=0.01, loss=0.01, backward=0.02, other=0.01, data_wait=0.05)
    assert "itself (40 % of a step), python between (10 % of a step)." in both
    waits = told(forward=0.001, data_wait=0.9)
    assert waits.endswith(
        " Steps wait for data for 100 % of their time, and no change of the loader is sure to "
        "help: trainprof tune measures what other settings give."
    )
    assert "wait for data" not in told(forward=0.01, data_wait=0.0004)
    assert "Not judged: python between (50 % of a step)." in told(other=0.1, data_wait=0.1)
    assert "Not judged: forwards computed again in backward, 8 %" in told(recompute=8, forward=92)
    assert told("cuda:0", forward=0.05, backward=0.05).endswith("gain over 3 %.")


@pytest.mark.parametrize(
    ("busy", "numerics", "told"),
    [
        (0.95, Numerics("float32", "highest"), ["precision('high') may make", "the second."]),
        (0.95, Numerics("float32", "high"), ["torch.autocast, where the script has none, may"]),
        (0.95, Numerics("bfloat16", "highest"), []),
        (0.95, None, []),
        (0.3, Numerics("float32", "highest"), None),
    ],
)
def test_what_a_device_computes_is_not_judged(
    busy: float, numerics: Numerics | None, told: list[str] | None
) -> None:
    healthy = summaries.healthy()
    device = Device(0, "cuda:0", [busy, 0.97], {}, {}, None, None, 200)
    said = words(
        findings=[],
        verdict=healthy.verdict,
        findings_from=0.03,
        run=replace(healthy.run, device="cuda:0"),
        devices=[device],
        numerics=numerics,
    )
    said = " ".join(said.split())
    assert ("the device computes (at work in at least 95 %" in said) == (told is not None)
    assert ("float32" in said) == bool(told)
    assert all(one in said for one in told or [])


def test_large_parts_that_no_finding_is_about_are_named() -> None:
    base = summaries.slow_loader()

    def told(found: str, run: Any = base.run, **per_step_s: float) -> str:
        training = replace(base.training, per_step_s=per_step_s)
        findings = [summaries.finding(id=found)]
        return " ".join(words(training=training, findings=findings, run=run).split())

    parts = {"data_wait": 0.013, "forward": 0.008, "backward": 0.008, "optimizer": 0.030}
    assert told("saturated_cpu", **parts).endswith(
        "Not judged: forward and backward, 16 of 59 ms a step (27 %); optimizer, 30 of 59 ms a "
        "step (51 %)."
    )
    assert told("unused_gradients", **parts).endswith(
        "Not judged: optimizer, 30 of 59 ms a step (51 %)."
    )
    assert "Not judged" not in told("thread_count", **parts)  # which slows all of computing
    assert "Not judged" not in told("slow_rank", **parts)  # for which others wait anywhere
    assert "Not judged" not in told("saturated_cpu", data_wait=0.08, optimizer=0.02)
    on_device = replace(base.run, device="cuda:0")
    assert "Not judged" not in told("saturated_cpu", on_device, **parts)
    again = "Not judged: forwards computed again in backward, 10 % of a step"
    for found in ("saturated_cpu", "slow_rank"):
        assert again in told(found, recompute=0.01, data_wait=0.09)
        assert again not in told(found, recompute=0.01, data_wait=0.3)


def test_of_many_cautions_a_short_page_has_two() -> None:
    minded = [summaries.finding(cautions=["one", "two", "three", "four"])]
    assert "Mind: one; two; 2 more: --why serial_loading." in words(findings=minded)
    assert "Mind: one; two; three; four." in words(replace(PAGE, verbose=True), findings=minded)
    summary = replace(summaries.slow_loader(), findings=minded)
    rule = rule_named("serial_loading")
    assert rule is not None
    told = render_why(summary, rule, width=80, color=False)
    assert "Mind       one; two; three; four\n" in told
    assert "Change     DataLoader(..., num_workers=5" in told


def test_why_gives_the_numbers() -> None:
    rule = rule_named("serial_loading")
    assert rule is not None
    told = render_why(summaries.slow_loader(), rule, width=80, color=False)
    assert "wait share 82 %, batch 226 ms, workers 0" in told
    assert "wait share from 5 % on" in told
    assert "most likely 4.60 x" in told
    assert "step 18 took 900 ms, 800 ms of it waiting for data" in told
    other = rule_named("gc_pauses")
    assert other is not None
    told = render_why(summaries.slow_loader(), other, width=80, color=False)
    assert "gc_pauses was not found in train.py: what it looks for is not there, stays" in told
    assert "Found at   share from 3 % on" in told
    upper = rule_named("sample_by_sample")
    assert upper is not None
    told = render_why(summaries.slow_loader(), upper, width=80, color=False)
    assert "sample up to 20.0 µs" in told


def test_what_a_part_gains_is_not_told_of_the_run() -> None:
    rule = rule_named("serial_loading")
    assert rule is not None
    whole = summaries.slow_loader()
    part = replace(whole, run=replace(whole.run, part="epoch 2"))
    for summary, gains, saved in (
        (whole, "the run 3.0 to 3.6 x", "of this run"),
        (part, "this part of it 3.0 to 3.6 x", "of this part of the run"),
    ):
        told = " ".join(render_why(summary, rule, width=80, color=False).split())
        assert gains in told
        assert f"41.2 s {saved}" in told
        assert gains in markdown.render(summary)
    passed = PassedOver(part.findings[0], LITTLE)
    told = render_why(replace(part, findings=[], passed_over=[passed]), rule, width=80, color=False)
    assert "this part of it 3.0" in " ".join(told.split())


def test_why_tells_the_thresholds_that_were_set() -> None:
    summary = summaries.slow_loader()
    rule = rule_named("gc_pauses")
    assert rule is not None
    settings = {"gc_pauses.share": 0.2, "serial_loading.share": 0.4}
    told = render_why(summary, rule, width=80, color=False, settings=settings)
    assert "Found at   share from 20 % on" in told
    passed = PassedOver(replace(summary.findings[0], id=rule.id, thresholds={}), LITTLE)
    summary = replace(summary, findings=[], passed_over=[passed])
    told = render_why(summary, rule, width=80, color=False, settings=settings)
    assert "Found at   share from 20 % on" in told


def why(name: str, **changes: Any) -> str:
    rule = rule_named(name)
    assert rule is not None
    summary = replace(summaries.slow_loader(), **changes)
    return render_why(summary, rule, width=80, color=False)


def test_why_of_what_was_not_found_says_what_the_run_spent_there() -> None:
    assert "Measured   data wait 46.4 s (79 % of wall, 83 % of a step)," in why("slow_collate")
    assert "Measured   checkpoints 0 s\n" in why("slow_checkpoints")
    # As in the ledger: a wait that may be the device's work is called by no other name.
    base = summaries.accelerator()
    told = why("exposed_syncs", run=base.run, ledger=base.ledger, training=base.training)
    assert "Measured   waiting for the GPU or copying " in told


def test_why_says_no_more_where_a_rule_has_no_keys_or_the_run_no_verdict() -> None:
    assert "Measured" not in why("slow_validation")
    base = summaries.slow_loader()
    empty = replace(base.ledger, seconds={}, wall_s=0.0)
    unmeasured = {"ledger": empty, "training": replace(base.training, per_step_s=None)}
    assert "Measured" not in why("gc_pauses", **unmeasured)
    timed = replace(base.verdict, bottleneck="unknown", headline="NO VERDICT: lines were timed")
    told = why("gc_pauses", verdict=timed)
    assert told.startswith("gc_pauses was not found in train.py: NO VERDICT: lines were timed.")
    assert "Measured" not in told


PASSED: list[tuple[PassedOver, str]] = [
    (
        PassedOver(summaries.finding(id="gc_pauses"), IN_NOISE, 0.18),
        "in this run a gain of less than 18 % would not show, for its halves differ by half",
    ),
    (PassedOver(summaries.finding(id="gc_pauses"), LITTLE, 0.03), "it would gain less than 3 %"),
    (
        PassedOver(summaries.finding(id="gc_pauses"), MAY_LOSE),
        "the change may cost more than it gains",
    ),
    (
        PassedOver(summaries.finding(id="gc_pauses"), SYMPTOM, root="thread_count"),
        "it comes of thread_count, which is told",
    ),
]


@pytest.mark.parametrize(("passed", "why"), PASSED)
def test_why_says_what_was_found_and_passed_over(passed: PassedOver, why: str) -> None:
    rule = rule_named("gc_pauses")
    assert rule is not None
    summary = replace(summaries.healthy(), passed_over=[passed])
    told = " ".join(render_why(summary, rule, width=80, color=False).split())
    assert f"{passed.finding.id} at {passed.finding.site}: {passed.finding.title}." in told
    assert f"It is not told: {why}" in told
    assert "Measured" in told
    assert "wait share from 5 % on" in told


def test_what_noise_hides_is_counted_and_on_request_named() -> None:
    hidden = [passed for passed, _ in PASSED]
    known = {"findings": [], "findings_from": 0.18, "passed_over": hidden}
    assert "1 cause below that: --verbose." in " ".join(words(**known).split())
    verbose = replace(PAGE, verbose=True)
    named = (
        "Too little to show in this run, which is uneven: gc_pauses at train.py:41 (up to 5.2 x)."
    )
    assert named in " ".join(words(verbose, **known).split())
    beside = words(verbose, findings=[summaries.finding()], passed_over=hidden)
    assert named in " ".join(beside.split())
    assert "uneven" not in words(findings=[summaries.finding()], passed_over=hidden)
    assert "uneven" not in words(verbose, findings=[summaries.finding()], passed_over=hidden[1:])


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
@pytest.mark.parametrize("width", [80, 120])
def test_each_rule_is_explained_in_the_width_there_is(rule: object, width: int) -> None:
    told = render_rule(rule, width=width, color=False)  # type: ignore[arg-type]
    assert "What to do:" in told
    assert max(map(len, told.splitlines())) <= width


def test_markdown_lists_them_and_acts_on_nothing() -> None:
    told = markdown.render(summaries.slow_loader())
    assert "- serial\\_loading at train.py:41:" in told
    hostile = summaries.finding(title="<img src=x> @someone")
    told = markdown.render(replace(summaries.slow_loader(), findings=[hostile]))
    assert "<img" not in told
    assert "@someone" not in told


def items(**changes: object) -> str:
    """Returns what the comment has between how the run ended and where its time went."""
    blocks = markdown.render(replace(summaries.slow_loader(), **changes)).split("\n\n")  # type: ignore[arg-type]
    return "\n\n".join(blocks[2 : next(i for i, x in enumerate(blocks) if x.startswith("| wh"))])


def test_markdown_minds_what_a_change_breaks() -> None:
    cautions = ["other <b>numbers</b> are drawn", "more memory is needed"]
    minded = summaries.finding(cautions=cautions)
    plain = summaries.finding(id="gc_pauses", cautions=[], also=["it is left to the page"])
    told = items(findings=[minded, plain]).splitlines()
    assert [line[:10] for line in told[:7]] == [
        *("- serial\\_", "  Change: ", "  Gives: s", "  Mind: ot"),
        *("- gc\\_paus", "  Change: ", "  Gives: s"),
    ]
    assert told[2].endswith(" 71 % of making a batch goes to data.py:52 (decode).")
    assert told[3] == ("  Mind: other &lt;b&gt;numbers&lt;/b&gt; are drawn; more memory is needed.")
    assert told[6].endswith("trainprof tune does).")
    assert told[8].startswith("Verify: measure that: trainprof tune train.py ")


def test_markdown_names_what_it_does_not_show() -> None:
    unsure = {"predicted_speedup": None, "cautions": [], "also": []}
    many = [summaries.finding(id=f"rule_{number}", **unsure) for number in range(7)]
    lines = items(findings=many, together=3.21).splitlines()
    assert len(lines) == 15
    assert lines[10] == ("- 2 more findings (rule\\_5, rule\\_6): trainprof report RUN --verbose")
    assert lines[12] == "All of these together: training up to about 3.2 x as fast."
    for together in (None, float("inf")):
        few = items(findings=many[:5], together=together)
        assert len(few.splitlines()) == 12
        assert "more finding" not in few


def test_markdown_tells_that_no_cause_was_found() -> None:
    known = {"findings": [], "verdict": summaries.healthy().verdict, "findings_from": 0.03}
    told = items(**known)
    assert told.startswith("What to change: no cause was found that would gain over 3 %")
    assert "Not judged: computing itself" in told
    hidden = [PassedOver(summaries.finding(id="gc_pauses"), IN_NOISE, 0.03)]
    told = items(**known, passed_over=hidden)
    assert " 1 cause below that: trainprof report RUN --verbose." in told
    assert items(**{**known, "findings_from": None}) == ""


@pytest.mark.parametrize(("steps", "is_short"), [(80, True), (100, False)])
def test_what_was_not_found_in_a_short_run_may_have_been_looked_at_too_rarely(
    steps: int, is_short: bool
) -> None:
    one = summaries.healthy()
    one = replace(one, training=replace(one.training, steps=steps))
    rule = rule_named("discarded_gradients")
    assert rule is not None
    told = " ".join(render_why(one, rule, width=80, color=False).split())
    why = "or would gain too little."
    if is_short:
        why = "would gain too little, or was looked at too rarely in a run this short."
    assert f"stays under its thresholds, {why}" in told
