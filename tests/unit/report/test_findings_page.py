"""What to change: each finding with its gain, what has room, what no rule judges, and why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from support import summaries

from trainprof.analysis.summary.code import Collective, HottestLine
from trainprof.analysis.summary.device import Device
from trainprof.analysis.summary.finding import (
    COMES_ONCE,
    IN_NOISE,
    LIKELY,
    LITTLE,
    MAY_LOSE,
    MODELLED_WORKERS,
    OPTIMIZER_BUILDERS,
    SOME_RANKS,
    SYMPTOM,
    Finding,
    PassedOver,
)
from trainprof.analysis.summary.run import Phases, Verdict
from trainprof.analysis.summary.run_summary import RunSummary
from trainprof.findings.catalogue import RULES, rule_named
from trainprof.report import markdown
from trainprof.report.page.finding_page import render_rule, render_why
from trainprof.report.page.findings import (
    findings_section,
    next_commands,
    speedup_in_short,
    speedup_words,
)
from trainprof.report.text.layout import Page

PAGE, VERBOSE = Page(), Page(verbose=True)

SLOW, HEALTHY = summaries.slow_loader(), summaries.healthy()
NOTHING = {"findings": [], "verdict": HEALTHY.verdict, "findings_from": 0.03}


def section(page: Page = PAGE, room: int | None = None, **changes: Any) -> str:
    lines = findings_section(replace(SLOW, **changes), page, room)
    return "\n".join(line.plain for line in lines)


def at_most(name: str, likely: float, most: float, **changes: Any) -> Finding:
    """A finding of which the most that it may gain is known."""
    return summaries.finding(
        id=name,
        is_at_most=True,
        predicted_speedup=[1.0, most],
        run_speedup=[1.0, 1.9],
        **{"change": {}, "of_steps": False, "is_tried_by_tune": False, **changes},
        evidence={LIKELY: likely},
    )


def test_gains(gallery):
    plain = summaries.finding()
    modelled = summaries.finding(
        is_at_most=True, predicted_speedup=[1.0, 1.3], run_speedup=[1.0, 1.2]
    )
    unknown = replace(modelled, change={}, evidence={}, is_tried_by_tune=False)
    loses = summaries.finding(predicted_speedup=[0.8, 2.0])
    once = summaries.finding(evidence={COMES_ONCE: True}, recoverable_s=2.7)
    variants = {
        "a range": plain,
        "no change of tune's": summaries.finding(change={}),
        "not tried by tune": summaries.finding(is_tried_by_tune=False),
        "at most, modelled": modelled,
        "at most, not tried by tune": replace(modelled, is_tried_by_tune=False),
        "at most, modelled for workers": replace(
            modelled, change={}, evidence={MODELLED_WORKERS: 4}
        ),
        "at most, unknown": unknown,
        "at most, of training": replace(unknown, of_steps=False),
        "all of it": at_most("python_in_loop", 2.7, 3.2),
        "all of it, near the most": at_most("python_in_loop", 2.7, 2.75),
        "all of it, by stack samples": at_most("python_in_model", 2.7, 3.2),
        "evenly": at_most("thread_count", 1.5, 1.8),
        "all ranks": at_most("slow_rank", 1.5, 1.8),
        "with a change": at_most("worker_restart", 2.0, 2.3, change={"persistent_workers": True}),
        "tried by tune": at_most("worker_restart", 2.0, 2.3, is_tried_by_tune=True),
        "an estimate": at_most("double_precision", 2.2, 3.8),
        "an estimate of a folder": at_most("padded_batches", 2.2, 3.8),
        "an estimate that is the most": at_most("unused_gradients", 2.2, 2.2),
        "may lose": replace(loses, evidence={}),
        "may lose, with what is likely": replace(loses, evidence={**loses.evidence, LIKELY: 1.4}),
        "once": once,
        "once, not known": replace(once, recoverable_s=None),
        "not known": summaries.finding(predicted_speedup=None),
        "no numbers": summaries.finding(predicted_speedup=[float("nan"), 2.0]),
        "one number": summaries.finding(predicted_speedup=[1.0]),
    }
    gallery(
        "gains.txt",
        {
            title: [speedup_words(finding), speedup_in_short(finding)]
            for title, finding in variants.items()
        },
    )


def test_all_together_is_noted_where_it_gains_more_than_the_best_alone():
    two = [summaries.finding(), summaries.finding(id="gc_pauses", predicted_speedup=[1.0, 1.1])]
    once = replace(two[0], evidence={COMES_ONCE: True})
    for findings, together, is_noted in (
        (two, 5.4, True),
        (two, 5.3, False),
        ([*two[1:], once], 1.2, True),
    ):
        noted = "All of these together" in section(findings=findings, together=together)
        assert noted is is_noted


# What has room


def of_little(name: str, **changes: Any) -> Finding:
    """A finding that may give way to others."""
    little: dict[str, Any] = {"severity": "note", "predicted_speedup": [1.0, 1.05]}
    return summaries.finding(id=name, **little | changes)


def test_the_first_stands_and_those_of_little_gain_give_way(gallery):
    many = [of_little(f"rule_{number}") for number in range(7)]
    cautious = [summaries.finding(cautions=["one", "two", "three", "four"])]
    gallery(
        "findings.txt",
        {
            "room for one": section(room=6, findings=many, together=1.4),
            "room for all that are shown": section(findings=many),
            "many cautions": section(findings=cautious),
            "many cautions, verbose": section(VERBOSE, findings=cautious),
        },
    )
    assert "7 rule_6" in section(VERBOSE, findings=many)


@pytest.mark.parametrize(
    "worth",
    [{"severity": "warn", "predicted_speedup": None}, {"predicted_speedup": [1.0, 1.1]}],
    ids=["a warning", "a gain"],
)
def test_what_is_worth_a_change_has_its_lines_whatever_room_there_is(worth):
    three = [summaries.finding(), of_little("second"), of_little("third", **worth)]
    text = section(room=1, findings=three)
    for number, name in ((2, "second"), (3, "third")):
        assert f"{number} {name} at train.py:41" in text
    assert text.count("Change: DataLoader(") == 3
    assert text.count("Gives:") == 1
    assert "more finding" not in text


def test_no_finding_is_shown_without_its_change_and_what_may_break_by_it():
    two = [summaries.finding(), of_little("second", cautions=["rows come as a list"])]
    heights = set()
    for room in range(40):
        text = section(room=room, findings=two)
        _, _, second = text.partition("2 second")
        assert ("Change: " in second) == ("Mind: rows come as a list." in second) == bool(second)
        assert bool(second) != ("1 more finding (second): --verbose" in text)
        assert ("steps 1.00 to 1.05 x as fast" in " ".join(second.split())) == bool(second)
        heights.add(text.count("\n"))
    assert len(heights) == 3  # without it, in fewer words, whole


def test_each_is_shown_before_one_is_shown_whole():
    three = [summaries.finding(), of_little("second"), of_little("third")]
    whole = len(section(room=99, findings=three).splitlines())
    text = section(room=whole - 1, findings=three)
    assert text.count("Gives:") == 2
    assert "Gives:" not in text.split("3 third")[1]
    assert "Change:" in text.split("3 third")[1]


# What no rule judges


DATA_BOUND = Verdict("data", "DATA-BOUND", "highly", 0.22, "train.py:41")
EVALUATION = Verdict("evaluation", "EVALUATION", "highly", 0.6, "train.py:77")
ALL_REDUCE = Collective("train.py:60", "all_reduce", 250, 18.0)


def without_findings(
    device: str | None = None,
    *,
    verdict: Verdict = HEALTHY.verdict,
    collectives: Sequence[Collective] = (),
    **per_step_s: float,
) -> str:
    training = replace(HEALTHY.training, per_step_s=per_step_s, steps=250)
    run = replace(HEALTHY.run, device=device)
    changes = {**NOTHING, "verdict": verdict, "collectives": collectives}
    return section(**changes, training=training, run=run)


def lines_of(*lines: list[Any]) -> str:
    """Of a step that is 50 % forward, 20 % Python and 30 % loss, or waits for data."""
    hot = [
        HottestLine(f"net.py:{at}", "attend", part, *who or ["training"], [share, share], 90)
        for at, (part, share, *who) in enumerate(lines, 30)
    ]
    is_loading = hot[0].part == "fetch"
    parts = (
        {"data_wait": 0.9, "forward": 0.1}
        if is_loading
        else {"forward": 0.5, "other": 0.2, "loss": 0.3}
    )
    training = replace(HEALTHY.training, per_step_s=parts)
    return section(**NOTHING, training=training, hot_lines=hot)


def on_device(
    busy: float,
    idle: Mapping[str, float] | None = None,
    **seconds: float,
) -> str:
    device = Device(0, "cuda:0", [busy, 0.97], idle or {}, {}, None, None, 200, seconds)
    run, phases = replace(HEALTHY.run, device="cuda:0"), Phases(1.0, 100.0, 1.0)
    return section(**NOTHING, run=run, phases=phases, devices=[device])


def with_finding(name: str, device: str | None = None, **per_step_s: float) -> str:
    training = replace(SLOW.training, per_step_s=per_step_s)
    run = SLOW.run if device is None else replace(SLOW.run, device=device)
    text = section(training=training, run=run, findings=[summaries.finding(id=name)])
    return "".join(text.partition("No finding explains")[1:])


PASSED = [
    PassedOver(summaries.finding(id="gc_pauses"), IN_NOISE, 0.18),
    PassedOver(summaries.finding(id="gc_pauses"), LITTLE, 0.03),
    PassedOver(summaries.finding(id="gc_pauses"), MAY_LOSE),
    PassedOver(summaries.finding(id="gc_pauses"), SYMPTOM, root="thread_count"),
    PassedOver(summaries.finding(id="gc_pauses"), SOME_RANKS),
]


def test_what_no_rule_judges(gallery):
    parts = {"data_wait": 0.013, "forward": 0.008, "backward": 0.008, "optimizer": 0.030}
    computing = {"forward": 0.01, "loss": 0.01, "backward": 0.02, "other": 0.01, "data_wait": 0.05}
    hidden = {"findings_from": 0.18, "passed_over": PASSED}
    verbose = " ".join(section(VERBOSE, findings=[], **hidden).split())
    assert all(rule.id.replace("_", " ") in verbose for rule in RULES)
    gallery(
        "not_judged.txt",
        {
            "nothing found": section(**NOTHING),
            "nothing found in noise": section(findings=[], findings_from=0.18),
            "hidden by noise": section(findings=[], **hidden),
            "hidden by noise, verbose": verbose.partition(" Looked for")[0],
            "computing and Python": without_findings(**computing),
            "waits": without_findings(forward=0.001, data_wait=0.9),
            "hardly waits": without_findings(forward=0.01, data_wait=0.0004),
            "Python": without_findings(other=0.1, data_wait=0.1),
            "recomputing": without_findings(recompute=8, forward=92),
            "lines": lines_of(["forward", 0.4], ["other", 0.1]),
            "lines of workers": lines_of(["fetch", 0.7, "worker"]),
            "a loss by hand": lines_of(["loss", 0.2]),
            "communication": without_findings(forward=0.1, other=0.1, collectives=[ALL_REDUCE]),
            "the headline's part, a small one": without_findings(
                forward=0.024, backward=0.054, data_wait=0.022, verdict=DATA_BOUND
            ),
            "the headline's part, outside of steps": without_findings(
                forward=0.1, verdict=EVALUATION
            ),
            "on a device, unknown": without_findings("cuda:0", forward=0.05, backward=0.05),
            "on a device": on_device(0.6, forward=30.0, backward=60.0),
            "on a device that waits": on_device(0.3, idle={"loader_s": 40.0}, forward=1),
            "a busy device": on_device(0.95),
            "mostly idle": on_device(0.3),
            "with a finding": with_finding("saturated_cpu", **parts),
            "with one of backward": with_finding("unused_gradients", **parts),
            "with one that slows all of computing": with_finding("thread_count", **parts),
            "with one for which others wait": with_finding("slow_rank", **parts),
            "with small parts": with_finding("saturated_cpu", data_wait=0.08, optimizer=0.02),
            "with one on a device": with_finding("saturated_cpu", "cuda:0", **parts),
            "with recomputing": with_finding("slow_rank", recompute=0.01, data_wait=0.09),
            "with little recomputing": with_finding("slow_rank", recompute=0.01, data_wait=0.3),
        },
    )
    few = replace(HEALTHY.training, steady_steps=5)
    assert section(**NOTHING, training=few) == ""
    assert section(findings=[], verdict=HEALTHY.verdict) == ""  # of an older trainprof
    with_hidden = {"findings": [summaries.finding()], "passed_over": PASSED}
    assert "Too little" in section(VERBOSE, **with_hidden)
    assert "Too little" not in section(**with_hidden)
    assert "Too little" not in section(VERBOSE, **{**with_hidden, "passed_over": PASSED[1:]})


# The commands that follow it up


LINES = ("Lines", "time each line:", "trainprof lines -m kws.train --epochs '2 3'")
VERIFY = ("Verify", "measure that:", "trainprof tune -m kws.train --epochs '2 3'")
VERIFY_NUMERICS = (*VERIFY[:2], VERIFY[2].replace("tune", "tune --allow-numerics"))
WORDS = ["-m", "kws.train", "--epochs", "2 3"]
IN_WAIT: Any = ("f", "data_wait", "training", [0.5, 0.6], 90)
IN_LOOP = summaries.finding(id="python_in_loop", is_tried_by_tune=False)
ON_DEVICE = replace(SLOW.run, command=WORDS, device="cuda:0")


@pytest.mark.parametrize(
    ("words", "changes", "commands"),
    [
        (WORDS, {}, [VERIFY]),
        (WORDS, {"findings": [summaries.finding(id="full_precision")]}, [VERIFY_NUMERICS]),
        (WORDS, {"findings": [IN_LOOP]}, [LINES]),
        (WORDS, {"findings": [summaries.finding(id="slow_optimizer", is_tried_by_tune=False)]}, []),
        (WORDS, {"findings": [summaries.finding(change={}, is_tried_by_tune=False)]}, [LINES]),
        (WORDS, {"findings": [IN_LOOP], "lines": SimpleNamespace()}, []),
        (WORDS, NOTHING, []),
        (WORDS, {**NOTHING, "hot_lines": [HottestLine("a.py:1", *IN_WAIT)]}, [LINES]),
        (WORDS, {**NOTHING, "findings_from": None}, []),
        (WORDS, {**NOTHING, "run": ON_DEVICE}, []),
        ([], {}, []),
        (["-m"], {}, []),
        (["train.py", "--token=***"], {}, []),
    ],
)
def test_next_commands(words, changes, commands):
    run = replace(SLOW.run, command=words)
    assert next_commands(replace(SLOW, **{"run": run, **changes})) == commands


# Why


def why(name: str, summary: RunSummary = SLOW, width: int = 80, **options: Any) -> str:
    return render_why(summary, rule_named(name), Page(width), **options)


def why_finding(finding: Finding) -> str:
    return why(finding.id, replace(SLOW, findings=[finding]))


def test_why(gallery):
    device = summaries.accelerator()
    empty = replace(SLOW.ledger, seconds={}, wall_s=0.0)
    not_measured = replace(SLOW.training, per_step_s=None)
    timed = replace(SLOW.verdict, bottleneck="unknown", headline="NO VERDICT: lines were timed")
    part = replace(SLOW, run=replace(SLOW.run, part="epoch 2"))
    short, long = (replace(HEALTHY, training=replace(HEALTHY.training, steps=n)) for n in (80, 100))
    settings = {"gc_pauses.share": 0.2, "serial_loading.share": 0.4}
    unset = PassedOver(replace(SLOW.findings[0], id="gc_pauses", thresholds={}), LITTLE)
    without = replace(SLOW, findings=[], passed_over=[unset])
    tables = {"looked_up_share": 0.1, "share": 0.05}
    steps = [{"step": 17, "seconds": 0.44, "part_s": 0.368}]
    most = summaries.finding(is_at_most=True, change={}, predicted_speedup=[1.0, 5.2])
    gallery(
        "why.txt",
        {
            "a finding": why("serial_loading"),
            "of a part of the run": why("serial_loading", part),
            "not found": why("gc_pauses"),
            "not found, an upper threshold": why("sample_by_sample"),
            "not found, what the run spent": why("slow_collate"),
            "not found, on a device": why(
                "exposed_syncs",
                replace(SLOW, run=device.run, ledger=device.ledger, training=device.training),
            ),
            "not found, no keys": why("slow_rank"),
            "not found, nothing measured": why(
                "gc_pauses", replace(SLOW, ledger=empty, training=not_measured)
            ),
            "no verdict": why("gc_pauses", replace(SLOW, verdict=timed)),
            "few steps": why("discarded_gradients", short),
            "steps enough": why("discarded_gradients", long),
            "other thresholds": why("gc_pauses", settings=settings),
            "other thresholds, passed over": why("gc_pauses", without, settings=settings),
            **{
                f"passed over: {passed.why}": why(
                    "gc_pauses", replace(HEALTHY, passed_over=[passed])
                )
                for passed in PASSED
            },
            "many cautions": why_finding(summaries.finding(cautions=["one", "two", "three"])),
            "no site": why_finding(summaries.finding(id="gc_pauses", site=None)),
            "an upper threshold": why_finding(
                summaries.finding(id="dense_embeddings", thresholds=tables)
            ),
            "at most": why_finding(most),
            **{
                f"a step of {name}": why_finding(summaries.finding(id=name, steps=steps))
                for name in ("discarded_gradients", "padded_batches", "double_precision")
            },
            **{
                f"a step of {name}, too": why_finding(summaries.finding(id=name, steps=steps))
                for name in ("gc_pauses", "python_in_loop", "slow_rank")
            },
        },
    )


def test_evidence_is_in_the_unit_of_its_name():
    change = {"site": "b.py:2", "change": {"num_workers": 2}}
    evidence = {
        "batches by worker 0: 812, 1: 10": {"batches_by_worker": {"0": 812, "1": 10}},
        "by part a.py:3 1.50 s, b.py:4 200 ms": {"by_part_s": {"a.py:3": 1.5, "b.py:4": 0.2}},
        "late in share of steps rank 1 not measured": {"late_in_share_of_steps": {"rank 1": None}},
        "optimizers built by timm (a.py:1)": {OPTIMIZER_BUILDERS: {"a.py:1": "timm"}},
        "slow indices 7, 12345": {"slow_indices": [7, 12345]},
        "others b.py:2 num_workers=2": {"others": [change]},
        "bytes 18.3 GiB": {"bytes": 19_660_800_000},
        "batch 2.00 KiB": {"batch_bytes": 2048},
        "numbers of tables 5,120,000": {"numbers_of_tables": 5_120_000},
        "length 1,234,568": {"length": 1_234_567.8},
        "free cores 6.25": {"free_cores": 6.25},
        "threads 4": {"threads": 4.0},
        "unused share of backward 40 %": {"unused_share_of_backward": 0.4},
        "operators a step 3.40 ms": {"operators_s_a_step": 0.0034},
        "times not measured": {"times": float("nan")},
    }
    nothing = {"batch_bytes": None, "slow_indices": [], "by_part_s": {}, LIKELY: 4.6}
    for words, figures in evidence.items():
        summary = replace(SLOW, findings=[summaries.finding(evidence=nothing | figures)])
        text = why("serial_loading", summary, width=200)
        [line] = [line for line in text.splitlines() if "Measured" in line]
        assert line.removeprefix("Measured").strip() == words


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
def test_each_rule_is_explained_in_the_width_there_is(rule):
    text = render_rule(rule, Page())
    assert "What to do:" in text
    assert max(map(len, text.splitlines())) <= 80


# The comment


def items(**changes: Any) -> str:
    """Returns what the comment has between how the run ended and where its time went."""
    blocks = markdown.render(replace(SLOW, **changes)).split("\n\n")
    ledger = next(at for at, block in enumerate(blocks) if block.startswith("| wh"))
    return "\n\n".join(blocks[2:ledger])


def test_findings_in_the_comment(gallery):
    cautions = ["other <b>numbers</b> are drawn @someone", "more memory is needed"]
    cautious = summaries.finding(cautions=cautions, title="<img src=x> @someone")
    plain = summaries.finding(id="gc_pauses", cautions=[], also=["it is left to the page"])
    unsure = {"predicted_speedup": None, "cautions": [], "also": []}
    many = [summaries.finding(id=f"rule_{number}", **unsure) for number in range(7)]
    hidden = [PassedOver(summaries.finding(id="gc_pauses"), IN_NOISE, 0.03)]
    gallery(
        "findings.md",
        {
            "two": items(findings=[cautious, plain]),
            "too many": items(findings=many, together=3.21),
            "no more than are shown": items(findings=many[:5], together=float("inf")),
            "none": items(**NOTHING),
            "none but one in noise": items(**NOTHING, passed_over=hidden),
        },
    )
    assert items(**{**NOTHING, "findings_from": None}) == ""
