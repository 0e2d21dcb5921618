"""What to change: each finding with its gain, what has room, what no rule judges, and why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from support import summaries

from trainprof.analysis.run.evidence import DeviceEvidence
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
    SHARE_OF,
    SOME_RANKS,
    SYMPTOM,
    Finding,
    PassedOver,
    RuleTraits,
)
from trainprof.analysis.summary.levels import sentence
from trainprof.analysis.summary.run import Phases, Verdict
from trainprof.analysis.summary.run_summary import RunSummary
from trainprof.findings.catalogue import RULES, rule_named
from trainprof.findings.verdict import device_verdict, with_finding
from trainprof.report import markdown
from trainprof.report.page.finding_page import render_rule, render_why
from trainprof.report.page.findings import (
    findings_section,
    gain_words,
    next_commands,
    nothing_words,
    speedup_words,
    why_passed_over,
)
from trainprof.report.page.hot_lines import hot_line_words
from trainprof.report.page.page import render
from trainprof.report.text.layout import Page

PAGE, VERBOSE = Page(), Page(verbose=True)

SLOW, HEALTHY = replace(summaries.slow_loader(), hot_lines=[]), summaries.healthy()
NOTHING = {"findings": [], "verdict": HEALTHY.verdict, "findings_from": 0.03}


def section(page: Page = PAGE, **changes: Any) -> str:
    lines = findings_section(replace(SLOW, **changes), page)
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
            title: [gain_words(finding), speedup_words(finding)]
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
        text = section(VERBOSE, findings=findings, together=together)
        noted = "All of these together" in text
        assert noted is is_noted


# Blocks


def of_little(name: str, **changes: Any) -> Finding:
    """A finding that gets a line."""
    little: dict[str, Any] = {"severity": "note", "evidence": {LIKELY: 1.04}}
    return summaries.finding(id=name, **little | changes)


def test_findings(gallery):
    action = {"action": "Load data in worker processes", "cautions": []}
    code = "DataLoader(..., num_workers=2, persistent_workers=True, prefetch_factor=4)"
    far = f"/home/user/{'projects/' * 6}train.py:41"
    blocks = {
        "code": [summaries.finding(**action, advice=code)],
        "a flag of the script": [summaries.finding(**action, flag="--workers 2")],
        "words": [summaries.finding(**action, advice="cheaper samples, stored once")],
        "a far place": [summaries.finding(**action, advice=code, site=far)],
        "no place": [summaries.finding(**action, site=None)],
        "many cautions": [summaries.finding(cautions=["one", "two", "three", "four"])],
        "not the headline's": [summaries.finding(**action, title="it waits")],
        "small gains": [of_little(f"rule_{number}") for number in range(3)],
        "many": [summaries.finding(**action, id=f"rule_{number}") for number in range(5)],
    }
    gallery("findings.txt", {title: section(findings=x) for title, x in blocks.items()})
    for width in (60, 100, 140):
        text = section(Page(width), findings=blocks["code"])
        assert all(len(line) <= width for line in text.splitlines())
    verbose = section(VERBOSE, findings=blocks["many cautions"])
    assert verbose.count("Note: ") == 4


def test_a_small_gain_has_its_name_and_a_warning_has_lines():
    three = [summaries.finding(), of_little("second"), of_little("third", severity="warn")]
    text = section(findings=three)
    assert "\n3  Third" in text
    assert "Small gains: second" in text


def test_the_headline_has_the_first_findings_title_once():
    finding = summaries.finding(title="each step waits for its batch")
    verdict = with_finding(SLOW.verdict, [finding])
    assert verdict.headline.endswith("Each step waits for its batch.")
    text = render(replace(SLOW, findings=[finding], verdict=verdict), Page(200))
    assert text.count("ach step waits for its batch") == 1
    for kept in (HEALTHY.verdict, Verdict("unknown", "No verdict.")):
        assert with_finding(kept, []) == with_finding(kept, [of_little("x")]) == kept


def test_an_unknown_gain_is_not_small():
    unknown = {"predicted_speedup": None, "run_speedup": None, "recoverable_s": None}
    title = "the GPU computes in float32"
    finding = summaries.finding(
        id="full_precision", severity="note", evidence={}, title=title, **unknown
    )
    assert section(findings=[finding]).startswith("1  Allow TF32")
    summary = replace(SLOW, **{**NOTHING, "findings": [finding]})
    assert nothing_words(summary) == ""
    # What it costs is unknown: it is a headline where the bottleneck is of its kind.
    assert with_finding(SLOW.verdict, [finding]) == SLOW.verdict
    computing = Verdict("compute", "Compute-bound: it is 92 % of a step.", "not", 0.9)
    assert with_finding(computing, [finding]).headline == sentence(title)
    leading = replace(finding, traits=replace(finding.traits, slows_everything=True))
    assert with_finding(SLOW.verdict, [leading]).headline == sentence(title)


@pytest.mark.parametrize(
    ("own", "keys", "lead"),
    [
        ("Python in the loop is the bottleneck: it takes 30 %.", ["other"], True),
        ("Launch-bound: the GPU is idle up to 75 % of training.", ["other"], False),
        ("Compiling is the bottleneck: the GPU idles 30 %.", ["other"], False),
        ("Python in the loop is the bottleneck: it takes 30 %.", ["sync", "other"], False),
    ],
)
def test_a_headline_leads_with_the_cause_of_its_finding(own, keys, lead):
    finding = summaries.finding(id="x", title="the GPU idles 1.2 s", traits=RuleTraits(keys=keys))
    headline = with_finding(Verdict("host", own, "highly", 0.3), [finding]).headline
    assert headline.endswith("The GPU idles 1.2 s.")
    assert headline.startswith("Python in the loop is the bottleneck. ") == lead


# What no rule judges


DATA_BOUND = Verdict("data", "DATA-BOUND", "highly", 0.22, "train.py:41")
EVALUATION = Verdict("evaluation", "EVALUATION", "highly", 0.6, "train.py:77")
ALL_REDUCE = Collective("train.py:60", "all_reduce", 250, 18.0)


def page_of(**changes: Any) -> str:
    """Returns what the page has from its headline to its hot lines."""
    text = render(replace(SLOW, **{"findings_from": 0.03, **changes}), PAGE)
    return text[: text.index("Whole run")].partition("\n\n")[2].rstrip()


def without_findings(
    device: str | None = None,
    *,
    verdict: Verdict = HEALTHY.verdict,
    collectives: Sequence[Collective] = (),
    **per_step_s: float,
) -> str:
    step = summaries.statistics(sum(per_step_s.values()))
    training = replace(HEALTHY.training, per_step_s=per_step_s, step_s=step, steps=250)
    run = replace(HEALTHY.run, device=device)
    changes = {**NOTHING, "verdict": verdict, "collectives": collectives}
    return page_of(**changes, training=training, run=run)


def lines_of(*lines: list[Any]) -> list[str]:
    """Of a step that is 40 % forward, 30 % Python and 30 % loss, or waits for data."""
    hot = [
        HottestLine(f"net.py:{at}", "attend", part, *who or ["training"], [share, share], 90)
        for at, (part, share, *who) in enumerate(lines, 30)
    ]
    is_loading = hot[0].part == "fetch"
    computing = {"forward": 0.4, "other": 0.3, "loss": 0.3}
    parts = {"data_wait": 0.9, "forward": 0.1} if is_loading else computing
    training = replace(HEALTHY.training, per_step_s=parts)
    return hot_line_words(replace(SLOW, **NOTHING, training=training, hot_lines=hot), PAGE)


def on_device(
    busy: float,
    idle: Mapping[str, float] | None = None,
    **seconds: float,
) -> str:
    device = Device(0, "cuda:0", [busy, 0.97], idle or {}, {}, None, None, 200, seconds)
    run, phases = replace(HEALTHY.run, device="cuda:0"), Phases(1.0, 100.0, 1.0)
    evidence = DeviceEvidence.of(device, 100.0)
    assert evidence is not None
    said = device_verdict(evidence, training_s=100.0, evaluation_s=0.0, sites={})
    changes = {**NOTHING, "verdict": said, "devices": [device]}
    return page_of(**changes, run=run, phases=phases)


PASSED = [
    PassedOver(summaries.finding(id="gc_pauses"), IN_NOISE, 0.18),
    PassedOver(summaries.finding(id="gc_pauses"), LITTLE, 0.03),
    PassedOver(summaries.finding(id="gc_pauses"), MAY_LOSE),
    PassedOver(summaries.finding(id="gc_pauses"), SYMPTOM, root="thread_count"),
    PassedOver(summaries.finding(id="gc_pauses"), SOME_RANKS),
]


def test_what_no_rule_judges(gallery):
    computing = {"forward": 0.01, "loss": 0.01, "backward": 0.02, "other": 0.01, "data_wait": 0.05}
    hidden = {"findings_from": 0.18, "passed_over": PASSED}
    many = ["data_wait", "forward", "loss", "backward", "recompute", "optimizer", "gc", "transfer"]
    verbose = " ".join(section(VERBOSE, findings=[], **hidden, rules=["a_rule"]).split())
    gallery(
        "not_judged.txt",
        {
            "nothing found": nothing_words(replace(SLOW, **NOTHING)),
            "nothing found in noise": nothing_words(
                replace(SLOW, **{**NOTHING, "findings_from": 0.18})
            ),
            "only a small gain": nothing_words(
                replace(SLOW, **{**NOTHING, "findings": [of_little("x")]})
            ),
            "hidden by noise, verbose": verbose,
            "computing and Python": without_findings(**computing),
            "waits": without_findings(forward=0.001, data_wait=0.9),
            "hardly waits": without_findings(forward=0.01, data_wait=0.0004),
            "many parts": without_findings(**dict.fromkeys(many, 0.01)),
            "lines": lines_of(["forward", 0.4], ["other", 0.1]),
            "lines of workers": lines_of(["fetch", 0.7, "worker"]),
            "a loss by hand": lines_of(["loss", 0.2]),
            "communication": without_findings(forward=0.1, other=0.1, collectives=[ALL_REDUCE]),
            "on a device, unknown": without_findings("cuda:0", forward=0.05, backward=0.05),
            "on a device": on_device(0.6, forward=30.0, backward=60.0),
            "on a device that waits": on_device(0.3, idle={"loader_s": 40.0}, forward=1),
            "a busy device": on_device(0.95),
            "mostly idle": on_device(0.3),
        },
    )
    few = replace(HEALTHY.training, steady_steps=5)
    for unknown in ({"training": few}, {"findings_from": None}):
        assert nothing_words(replace(SLOW, **{**NOTHING, **unknown})) == ""
    with_hidden = {"findings": [summaries.finding()], "passed_over": PASSED}
    assert "Hidden by the noise" in section(VERBOSE, **with_hidden)
    assert "Hidden by the noise" not in section(**with_hidden)
    assert why_passed_over(PASSED[0], SLOW)


# The commands that follow it up


AGAIN = ("trainprof report train-20261121-034012-7f3a --html", "charts, all details")
LINES = ("trainprof lines -m kws.train --epochs '2 3'", "times each line")
TUNE = ("trainprof tune -m kws.train --epochs '2 3'", "measures fix 1")
TUNE_NUMERICS = (TUNE[0].replace("tune", "tune --allow-numerics"), TUNE[1])
SHOWN = ("trainprof lines train-20261121-034012-7f3a", "the time of each line")
TRIES = (TUNE[0], "tries other loader settings")
WORDS = ["-m", "kws.train", "--epochs", "2 3"]
IN_WAIT: Any = ("f", "data_wait", "training", [0.5, 0.6], 90)
IN_LOOP = summaries.finding(id="python_in_loop", is_tried_by_tune=False)
ON_DEVICE = replace(SLOW.run, command=WORDS, device="cuda:0")


@pytest.mark.parametrize(
    ("words", "changes", "commands"),
    [
        (WORDS, {}, [TUNE]),
        (WORDS, {"findings": [summaries.finding(id="full_precision")]}, [TUNE_NUMERICS]),
        (WORDS, {"findings": [IN_LOOP]}, [TRIES, LINES]),
        (
            WORDS,
            {"findings": [summaries.finding(id="slow_optimizer", is_tried_by_tune=False)]},
            [TRIES],
        ),
        (WORDS, {"findings": [summaries.finding(change={}, is_tried_by_tune=False)]}, [LINES]),
        (WORDS, {"findings": [IN_LOOP], "lines": SimpleNamespace()}, [SHOWN, TRIES]),
        (WORDS, NOTHING, [TRIES]),
        (WORDS, {**NOTHING, "hot_lines": [HottestLine("a.py:1", *IN_WAIT)]}, [TRIES, LINES]),
        (WORDS, {**NOTHING, "findings_from": None}, [TRIES]),
        (WORDS, {**NOTHING, "run": ON_DEVICE}, []),
        ([], {}, []),
        (["-m"], {}, []),
        (["train.py", "--token=***"], {}, []),
    ],
)
def test_next_commands(words, changes, commands):
    run = replace(SLOW.run, command=words)
    summary = replace(SLOW, **{"run": run, **changes})
    assert next_commands(summary) == [*commands, AGAIN][:2]


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
        "share of a steady step 9 %": {"python_share": 0.09, SHARE_OF: "a steady step"},
        "share of training 9 %": {"python_share": 0.09},
        "samples 9, samples that waited 4": {"looks": 9, "looks_that_waited": 4},
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


def test_the_comment_leaves_loaders_gpus_and_the_ledger_to_the_verbose_page():
    summary = replace(summaries.mixed_gpus(), findings=[summaries.finding()])
    text = markdown.render(summary)
    assert summary.verdict.headline in text.replace("\\", "")
    assert all(x in text for x in ("| One training step", "\n1. Load", "\nNext:"))
    assert not any(x in text for x in ("prefetch", "NVIDIA", "| GPU |", "not accounted for"))


def items(**changes: Any) -> str:
    """Returns what the comment has between the hot lines and the whole run."""
    text = markdown.render(replace(SLOW, **changes))
    blocks = text.partition("| One training step")[2].partition("\n\n")[2]
    return blocks.partition("Whole run")[0].strip()


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
            "many": items(findings=many, together=3.21),
            "none": items(**NOTHING),
            "none but one in noise": items(**NOTHING, passed_over=hidden),
        },
    )
