"""What one run's headline, ledger, findings, passed-over findings and page say against each other.

Worked out from the summary's plain numbers, not by the functions that the page is made with.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from trainprof.analysis.summary.finding import (
    IN_NOISE,
    LIKELY,
    LITTLE,
    MAY_LOSE,
    SOME_RANKS,
    SYMPTOM,
    Finding,
    comes_once,
)
from trainprof.analysis.summary.levels import LEAST_GAIN, percent
from trainprof.analysis.summary.run_summary import RunSummary
from trainprof.findings.catalogue import RULES
from trainprof.findings.saved import saved_summary
from trainprof.record.run_directory import RunDirectory
from trainprof.report.page.finding_page import render_why
from trainprof.report.page.page import render
from trainprof.report.text.layout import Page

WIDE = Page(width=100_000, verbose=True)
LARGE_SHARE = 0.25
# Of training: what is rounded, and what the ends of the phase have of one part or another.
_TOLERANCE = 0.01
_LOADING = ("loader_start", "first_batch", "data_wait", "loader_end")
_COMPUTING = ("forward", "loss", "backward", "recompute", "optimizer", "zero_grad", "compile")
_ON_DEVICE = ("transfer", "sync", "device_wait")
_GROUPS = {
    "data": _LOADING,
    "evaluation": ("evaluation",),
    "checkpoint": ("checkpoint",),
    "host": ("other", "gc"),
    "communication": ("communication",),
}
# As the page has them.
_PARTS = {
    "waiting for data": _LOADING,
    "forward": ("forward",),
    "loss": ("loss",),
    "backward": ("backward",),
    "optimizer": ("optimizer", "zero_grad"),
    "python between": ("other",),
    "calls of torch.distributed": ("communication",),
    "garbage collection": ("gc",),
    "copying": ("transfer",),
    "syncs": ("sync", "device_wait"),
    "checkpoints": ("checkpoint",),
}
_UNEXPLAINED = re.compile(
    r"(?:No finding explains|That does not mean there is nothing to gain): (.*?)\.(?: |$)",
    re.MULTILINE,
)
_NOTHING = re.compile(
    r"What to change: none of the \d+ causes .* was found \(.*"
    r"gains under (\d+ %) (?:are not reported|may be missed)\)"
)
_SHARE = re.compile(r"(\d+) %(?: of ([a-z -]+))?")
_FINDING = re.compile(r"^(\d+) (\w+)(?: at (.*?))?: ", re.MULTILINE)
_NO_WORDS = re.compile(r"\b(None|nan|NaN|inf)\b")


def contradictions_of(directory: Path) -> list[str] | None:
    """Returns those of a run's saved summary, None where it has none that can be used."""
    summary = saved_summary(RunDirectory(directory))
    if summary is None:
        return None
    found = contradictions(summary, render(summary, WIDE))
    short = render(summary, Page(width=WIDE.width))
    return [*found, *_by_why(summary), *_by_words(summary, short)]


def contradictions(summary: RunSummary, page: str) -> list[str]:
    """Returns a sentence for each; `page`: as `WIDE` has it."""
    checks = [_by_words(summary, page)]
    if summary.tuning is None:
        checks += [_of_headline(summary, page), _of_findings(summary, page)]
        checks += [_of_passed_over(summary), _of_parts(summary, page), _of_gains(summary, page)]
    return [sentence for check in checks for sentence in check]


def _by_words(summary: RunSummary, page: str) -> Iterator[str]:
    for finding in summary.findings:  # code may have such words
        for text in (finding.advice, *finding.cautions):
            page = page.replace(text, "")
    users = {*_NO_WORDS.findall(" ".join(summary.run.command))}
    for line in page.splitlines():
        if {*_NO_WORDS.findall(line)} - users:
            yield f"no words: {line.strip()!r}"


def _by_why(summary: RunSummary) -> Iterator[str]:
    """`--why` has a finding as the summary has it: reported, passed over, or not found."""
    passed = {x.finding.id for x in summary.passed_over}
    reported = {finding.id: finding.site for finding in summary.findings}
    for rule in RULES if summary.tuning is None else ():
        text = render_why(summary, rule, WIDE)
        is_reported = rule.id in reported
        if is_reported != bool(re.search(r"^Change ", text, re.MULTILINE)):
            yield f"--why {rule.id} and the summary differ in whether it is reported"
        if is_reported and reported[rule.id] and str(reported[rule.id]) not in text:
            yield f"--why {rule.id} has another place"
        if (rule.id in passed and not is_reported) != ("It is not reported:" in text):
            yield f"--why {rule.id} and the summary differ in whether it is passed over"
        if summary.is_judged and (rule.id in passed or is_reported) == ("was not found" in text):
            yield f"--why {rule.id} and the summary differ in whether it was found"


def _spent(summary: RunSummary, seconds: dict[str, float], times: float) -> dict[str, float]:
    """Returns seconds with communication apart from "other"; `times` of the run's."""
    calls_s = times * sum(call.seconds for call in summary.collectives)
    left_s = seconds.get("other", 0.0)
    calls_s = min(calls_s, left_s)
    return {**seconds, "other": left_s - calls_s, "communication": calls_s}


def _of_headline(summary: RunSummary, page: str) -> Iterator[str]:
    verdict, training_s = summary.verdict, summary.phases.training_s
    text = verdict.headline
    if text and text not in page:
        yield "the page has another headline"
    if verdict.share is not None and f"{100 * verdict.share:.0f} " not in text:
        yield f"{percent(verdict.share)} is the headline's share: {text}"
    if verdict.share is not None and not 0 <= verdict.share <= 1 + _TOLERANCE:
        yield f"a share of {verdict.share}"
    is_timed_on_device = any(x.busy_share for x in summary.devices or ())
    if verdict.share is None or is_timed_on_device or training_s <= 0:
        return
    spent = _spent(summary, summary.ledger.seconds, 1.0)
    shares = {
        name: sum(spent.get(key, 0.0) for key in keys) / training_s
        for name, keys in _GROUPS.items()
    }
    # Outside of the training phase parts may have time, too.
    ends = (summary.ledger.seconds.get(key, 0.0) for key in ("startup", "shutdown"))
    outside = max(summary.ledger.wall_s - training_s - sum(ends), 0.0) / training_s + _TOLERANCE
    if verdict.bottleneck in shares:
        if not -_TOLERANCE <= shares[verdict.bottleneck] - verdict.share <= outside:
            yield f"the ledger has {percent(shares[verdict.bottleneck])}: {text}"
        largest = max(shares, key=lambda name: shares[name])
        explained = summary.findings and _is_about(summary.findings[0], _GROUPS[verdict.bottleneck])
        if shares[largest] > shares[verdict.bottleneck] + outside and not explained:
            yield f"{largest} takes more, {percent(shares[largest])}: {text}"
    is_computing = verdict.bottleneck == "compute" and not text.startswith("COMPILE-BOUND")
    if is_computing and not summary.run.is_on_device:
        computing = sum(spent.get(key, 0.0) for key in _COMPUTING) / training_s
        if not -_TOLERANCE <= computing - verdict.share <= outside:
            yield f"the ledger has {percent(computing)} of computing: {text}"


def _of_findings(summary: RunSummary, page: str) -> Iterator[str]:
    named = [(name, site or None) for _, name, site in _FINDING.findall(page)]
    expected = [(finding.id, finding.site) for finding in summary.findings]
    if named != expected:
        yield f"the page has the findings {named}, the summary {expected}"
    if len({finding.id for finding in summary.findings}) < len(expected):
        yield f"a rule has two findings: {expected}"
    if summary.findings_from is None and summary.findings:
        yield "findings, and nothing was judged"
    if bool(summary.findings) and bool(_NOTHING.search(page)):
        yield "findings, and none that would gain anything"
    is_quiet = summary.is_judged and not summary.findings and summary.findings_from is not None
    if is_quiet != bool(_NOTHING.search(page)):
        yield "the page says nothing of what was looked for, or without having looked"
    bar = percent(summary.findings_from or 0.0)
    if is_quiet and _NOTHING.findall(page) != [bar]:
        yield f"the bar is {bar}, and another one is on the page"


def _of_passed_over(summary: RunSummary) -> Iterator[str]:
    reported = {finding.id for finding in summary.findings}
    there = reported | {x.finding.id for x in summary.passed_over}
    for passed in summary.passed_over:
        finding, bar = passed.finding, passed.least_gain
        gain = float(finding.evidence.get(LIKELY, math.inf)) - 1
        if finding.id in reported:
            yield f"{finding.id} is reported and passed over"
        is_true = {
            LITTLE: gain < LEAST_GAIN
            or (finding.recoverable_s or 0.0) < LEAST_GAIN * summary.phases.training_s,
            IN_NOISE: bar is not None
            and gain < bar
            and bar <= (summary.findings_from or 0.0) + 1e-9,
            MAY_LOSE: bool(finding.predicted_speedup and finding.predicted_speedup[0] < 1),
            SYMPTOM: passed.root in there,
            SOME_RANKS: bool(summary.ranks),
        }
        if not is_true.get(passed.why, False):
            yield f"{finding.id} is passed over for {passed.why}, which is not so: {passed}"


def _of_parts(summary: RunSummary, page: str) -> Iterator[str]:
    for sentence in _UNEXPLAINED.findall(page):
        base, sums = "", Counter[str]()
        for part in sentence.split("; "):
            share, of = _SHARE.findall(part)[0]
            base = of or base
            sums[base] += int(share)
        if max(sums.values()) > 100 + len(sums):
            yield f"parts of more than all of it: {sentence}"
    step_s, steps = summary.training.per_step_s, max(summary.training.steps, 1)
    is_asked = summary.is_judged and summary.findings_from is not None
    if not step_s or not is_asked or summary.run.is_on_device:
        return
    spent = _spent(summary, step_s, 1 / steps)
    whole_s = sum(step_s.values())
    sentence = " ".join(_UNEXPLAINED.findall(page))
    for name, keys in _PARTS.items():
        share = sum(spent.get(key, 0.0) for key in keys) / whole_s if whole_s > 0 else 0.0
        is_covered = any(_is_about(finding, keys) for finding in _with_symptoms(summary))
        is_named = bool(re.search(rf"(^|; ){re.escape(name)}(?: takes)? \d+ %", sentence))
        if share >= LARGE_SHARE and not is_covered and not is_named:
            yield f"{name} is {percent(share)} of a step, and neither explained nor named"
        is_of_step = "of training" not in sentence
        is_so = re.search(rf"{re.escape(name)}(?: takes)? {percent(share)}", sentence)
        if is_named and is_of_step and not is_so:
            yield f"{name} is {percent(share)} of a step, and not: {sentence}"
        if is_named and is_covered:
            yield f"{name} has a finding, and no finding explains it"
    group = _GROUPS.get(summary.verdict.bottleneck)
    if group and not summary.findings and not sentence:
        yield f"nothing is named that the headline is about: {summary.verdict.headline}"


def _of_gains(summary: RunSummary, page: str) -> Iterator[str]:
    for finding in summary.findings:
        likely, speedup = finding.evidence.get(LIKELY), finding.predicted_speedup
        if finding.recoverable_s is None or speedup is None:
            continue
        low, high = speedup
        if not low <= high:
            yield f"{finding.id} gains from {low} to {high}"
        if isinstance(likely, float) and not low - 1e-6 <= likely <= high + 1e-6:
            yield f"{finding.id} likely gains {likely}, between {low} and {high}"
        if isinstance(likely, float) and likely - 1 < LEAST_GAIN:
            yield f"{finding.id} gains {likely}, less than is reported"
        if finding.recoverable_s > summary.run.wall_s * (1 + _TOLERANCE):
            yield f"{finding.id} saves {finding.recoverable_s} s of {summary.run.wall_s} s"
    alone = [x for x in summary.findings if x.predicted_speedup and not comes_once(x)]
    of_training = [x.predicted_speedup[1] for x in alone if x.predicted_speedup and not x.of_steps]
    together = summary.together
    if together is not None and together < max(of_training, default=1.0) - 1e-6:
        yield f"together {together}, one alone {max(of_training)}"
    if together is not None and len(alone) < 2:
        yield "all together of fewer than two"
    if "All of these together" in page and together is None:
        yield "together, and it is not known"


def _with_symptoms(summary: RunSummary) -> list[Finding]:
    reported = {finding.id for finding in summary.findings}
    symptoms = [x.finding for x in summary.passed_over if x.why == SYMPTOM and x.root in reported]
    return [*summary.findings, *symptoms]


def _is_about(finding: Finding, keys: tuple[str, ...]) -> bool:
    traits = finding.traits
    return bool(traits.slows_everything or traits.of_all_parts or set(traits.keys) & set(keys))
