"""What one run's headline, ledger, findings, passed-over findings and page say against each other.

Worked out from the summary's plain numbers, not by the functions that the page is made with.
"""

from __future__ import annotations

import math
import re
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
    is_small,
)
from trainprof.analysis.summary.levels import LEAST_GAIN, percent, sentence
from trainprof.analysis.summary.run_summary import RunSummary
from trainprof.findings.catalogue import RULES
from trainprof.findings.saved import saved_summary
from trainprof.record.run_directory import RunDirectory
from trainprof.report.page.finding_page import render_why
from trainprof.report.page.page import render
from trainprof.report.text.layout import Page

WIDE = Page(width=100_000, verbose=True)
LARGE_SHARE = 0.25
_NAMED_FROM = 0.095
# Of the headline's numbers, which are rounded.
_CLAIM = 0.03
# Of a row's percentage.
_ROUNDED = 1.6
# Of training: what is rounded, and what the ends of the phase have of one part or another.
_TOLERANCE = 0.01
_LOADING = ("loader_start", "first_batch", "data_wait", "loader_end")
_COMPUTING = ("forward", "loss", "backward", "recompute", "optimizer", "zero_grad", "compile")
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
    "Python in the loop": ("other",),
    "torch.distributed": ("communication",),
    "garbage collection": ("gc",),
    "copying": ("transfer",),
    "syncs": ("sync", "device_wait"),
    "checkpoints": ("checkpoint",),
}
# What the line of the whole run calls them.
_OUTSIDE = {"evaluation": "validation", "checkpoint": "checkpoints", "data": "loader starts"}
_NOTHING = re.compile(r"No fix found.* (?:over|under) (\d+ %)\.|Only small gains found\.")
_STEP = re.compile(
    r"^(?:One training step|GPU time of).*?  ([\d.,]+) (m?s|min|h)  100 %$", re.MULTILINE
)
_ROW = re.compile(r"^  (\S.*?) +[█▉▊▋▌▍▎▏]* *  +([\d.,]+) (?:m?s|min|h) +(\d+) %$")
# Rows of a GPU's time by what a headline may name.
_OF_DEVICE = {
    "data": ("idle: waiting for data",),
    "transfer": ("idle: copying",),
    "sync": ("idle: around syncs",),
    "host": ("idle: Python in the loop", "idle: between small kernels"),
    "compiling": ("idle: torch.compile",),
    "checkpoint": ("idle: checkpoints",),
    "evaluation": ("idle: validation", "validation"),
}
_BUSY = ("busy", "forward", "loss", "backward", "recomputing forward", "optimizer", "validation")
_UNKNOWN = "idle or busy: unknown"
_CLAIMED = re.compile(r"(\d+) %|([\d.]+) of (?:its )?([\d.]+) m?s")
_FINDING = re.compile(
    r"^(\d+)  \S.*\n     (?:(\S+:\d+)  )?(?:.*\n)*?     Details: --why (\w+)$", re.MULTILINE
)
_GAIN = re.compile(r"^(\d+)  \S.*? ([\d.]+)x faster", re.MULTILINE)
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
            page = page.replace(text[1:], "")  # its first letter is a capital on the page
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
    if verdict.share is not None and not 0 <= verdict.share <= 1 + _TOLERANCE:
        yield f"a share of {verdict.share}"
    is_timed_on_device = any(x.busy_share for x in summary.devices or ())
    if is_timed_on_device and len(summary.devices or ()) == 1:
        yield from _of_device(summary, page)
    if verdict.share is None or is_timed_on_device or training_s <= 0:
        return
    spent = _spent(summary, summary.ledger.seconds, 1.0)
    in_step = _spent(summary, summary.training.per_step_s or {}, 1 / max(summary.training.steps, 1))
    step_s = sum(in_step.values())
    groups = {**_GROUPS, "compute": _COMPUTING}
    shares = {
        name: sum(spent.get(key, 0.0) for key in keys) / training_s for name, keys in groups.items()
    }
    of_step = {
        name: sum(in_step.get(key, 0.0) for key in keys) / step_s if step_s else shares[name]
        for name, keys in groups.items()
    }
    named = [name for name in ("forward", "loss", "backward", "optimizer") if name in text]
    of_step["compute"] = sum(in_step.get(key, 0.0) for name in named for key in _PARTS[name])
    of_step["compute"] /= step_s or 1.0
    yield from _of_claims(summary, [verdict.share, *_parts_of(verdict.bottleneck, of_step)])
    # Outside of the training phase parts may have time, too.
    ends = (summary.ledger.seconds.get(key, 0.0) for key in ("startup", "shutdown"))
    outside = max(summary.ledger.wall_s - training_s - sum(ends), 0.0) / training_s + _TOLERANCE
    if verdict.bottleneck in _GROUPS:
        if not -_TOLERANCE <= shares[verdict.bottleneck] - verdict.share <= outside:
            yield f"the ledger has {percent(shares[verdict.bottleneck])}: {text}"
        largest = max(_GROUPS, key=lambda name: shares[name])
        explained = summary.findings and _is_about(summary.findings[0], _GROUPS[verdict.bottleneck])
        is_more = shares[largest] > shares[verdict.bottleneck] + outside
        if largest not in ("evaluation", "checkpoint"):
            is_more = is_more and of_step[largest] >= of_step[verdict.bottleneck]
        if is_more and not explained:
            yield f"{largest} takes more, {percent(shares[largest])}: {text}"
    is_computing = verdict.bottleneck == "compute" and "torch.compile" not in text
    is_so = -_TOLERANCE <= shares["compute"] - verdict.share <= outside
    if is_computing and not summary.run.is_on_device and not is_so:
        yield f"the ledger has {percent(shares['compute'])} of computing: {text}"


def _of_device(summary: RunSummary, page: str) -> Iterator[str]:
    """A GPU's headline and verdict have the shares of its rows, and name the largest cause."""
    verdict, step = summary.verdict, _STEP.search(page)
    rows = [] if step is None else _rows_below(page[step.end() + 1 :])
    shown = {name: int(share) / 100 for name, _, share in rows}
    least = {name: sum(shown.get(x, 0.0) for x in parts) for name, parts in _OF_DEVICE.items()}
    least["compute"] = sum(shown.get(name, 0.0) for name in _BUSY)
    is_compiling = verdict.bottleneck == "host" and "torch.compile" in verdict.headline
    named = "compiling" if is_compiling else verdict.bottleneck
    if not rows or named not in least:
        return
    # Small rows are one, and what is unknown may be either.
    most = least[named] + shown.get("rest", 0.0) + _CLAIM
    if named in ("host", "compute", "evaluation"):
        most += shown.get(_UNKNOWN, 0.0)
    if verdict.share is not None and not least[named] - _CLAIM <= verdict.share <= most:
        yield f"the bars have {percent(least[named])}: {verdict.share:.3f}, {verdict.headline}"
    largest = max(_OF_DEVICE, key=lambda name: least[name])
    if least[largest] > most:
        yield f"{largest} takes more, {percent(least[largest])}: {verdict.headline}"
    claimed = [int(share) / 100 for share, *_ in _CLAIMED.findall(verdict.headline) if share]
    is_findings = any(sentence(x.title) in verdict.headline for x in summary.findings[:1])
    if is_findings or not claimed or "No single bottleneck" in verdict.headline:
        return
    if not any(least[named] - _CLAIM <= x <= most for x in claimed):
        yield f"{percent(least[named])} is the headline's share by the bars: {verdict.headline}"


def _parts_of(bottleneck: str, of_step: dict[str, float]) -> list[float]:
    return [of_step[bottleneck]] if bottleneck in of_step else []


def _of_claims(summary: RunSummary, shares: list[float]) -> Iterator[str]:
    """The headline's numbers are those of the part that it names; a finding's are its own."""
    text = summary.verdict.headline
    if any(finding.title[1:] in text for finding in summary.findings[:1]):
        return
    claimed = [
        int(share) / 100 if share else float(part) / max(float(whole), 1e-9)
        for share, part, whole in _CLAIMED.findall(text)
    ]
    is_named = "No single bottleneck" not in text
    if is_named and not any(abs(x - share) <= _CLAIM for x in claimed for share in shares):
        yield f"{' or '.join(map(percent, shares))} is the headline's share: {text}"
    if is_named and any(x < _NAMED_FROM for x in claimed):
        yield f"a headline names nothing so small: {text}"


def _of_findings(summary: RunSummary, page: str) -> Iterator[str]:
    named = [(name, site or None) for _, site, name in _FINDING.findall(page)]
    expected = [(finding.id, finding.site) for finding in summary.findings]
    if named != expected:
        yield f"the page has the findings {named}, the summary {expected}"
    if len({finding.id for finding in summary.findings}) < len(expected):
        yield f"a rule has two findings: {expected}"
    for finding in summary.findings[:1]:
        if page.count(finding.title[1:]) > 1:
            yield f"{finding.id} has its title twice on the page"
    if summary.findings_from is None and summary.findings:
        yield "findings, and nothing was judged"
    is_found = any(not is_small(finding) for finding in summary.findings)
    if is_found and bool(_NOTHING.search(page)):
        yield "findings, and none that would gain anything"
    is_quiet = summary.is_judged and not is_found and summary.findings_from is not None
    if is_quiet != bool(_NOTHING.search(page)):
        yield "the page says nothing of what was looked for, or without having looked"
    bar = percent(summary.findings_from or 0.0)
    if is_quiet and not summary.findings and _NOTHING.findall(page) != [bar]:
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
    step = _STEP.search(page)
    rows = [] if step is None else _rows_below(page[step.end() + 1 :])
    shown = {name: int(share) for name, _, share in rows}
    # A row that rounds to nothing is left out.
    if step is not None and not 99 <= sum(shown.values()) <= 100:
        yield f"parts of more or less than all of a step: {shown}"
    left = _units(step[1]) - sum(_units(time) for _, time, _ in rows) if step is not None else 0
    if step is not None and not 0 <= left <= max(1, _TOLERANCE * _units(step[1])):
        yield f"times do not add up to {step[1]} {step[2]}: {rows}"
    step_s, steps = summary.training.per_step_s, max(summary.training.steps, 1)
    if not step_s or summary.run.is_on_device or not summary.training.steps:
        return
    spent = _spent(summary, step_s, 1 / steps)
    whole_s = sum(step_s.values())
    short = render(summary, Page(width=WIDE.width))
    for name, keys in _PARTS.items():
        share = sum(spent.get(key, 0.0) for key in keys) / whole_s if whole_s > 0 else 0.0
        if share >= LARGE_SHARE and name not in shown:
            yield f"{name} is {percent(share)} of a step, and not named"
        # Rounded so that all add up, without parts of less than 1 %.
        if name in shown and abs(shown[name] - 100 * share) > _ROUNDED:
            yield f"{name} is {percent(share)} of a step, and not {shown[name]} %"
        is_covered = any(_is_about(finding, keys) for finding in _with_symptoms(summary))
        lines = [x for x in summary.hot_lines if x.part in keys and x.thread == "training"]
        is_asked = summary.is_judged and share >= LARGE_SHARE and not is_covered
        if is_asked and lines and keys != _LOADING and not _has_line(short, lines[0].site):
            yield f"{name} is {percent(share)} of a step, and its hottest line is not named"
    group = _GROUPS.get(summary.verdict.bottleneck, ())
    whole_run = next((line for line in page.splitlines() if line.startswith("Whole run")), "")
    is_named = any({*group} & {*keys} and name in shown for name, keys in _PARTS.items())
    is_outside = _OUTSIDE.get(summary.verdict.bottleneck, "-") in whole_run
    if group and not summary.findings and not is_named and not is_outside:
        yield f"nothing is named that the headline is about: {summary.verdict.headline}"


def _rows_below(text: str) -> list[tuple[str, str, str]]:
    rows = []
    for line in text.splitlines():
        match = _ROW.match(line)
        if match is None:
            break
        rows.append((match[1], match[2], match[3]))
    return rows


def _units(number: str) -> int:
    """A printed number in its last decimals."""
    return int(number.replace(",", "").replace(".", ""))


def _has_line(page: str, site: str) -> bool:
    """Whether the row of hot lines has it, which names a file once."""
    row = next((line for line in page.splitlines() if line.startswith("Hot lines")), "")
    return site in row or f", :{site.rpartition(':')[2]} " in row


def _of_gains(summary: RunSummary, page: str) -> Iterator[str]:
    shown = {int(number): float(times) for number, times in _GAIN.findall(page)}
    for number, finding in enumerate(summary.findings, 1):
        likely, speedup = finding.evidence.get(LIKELY), finding.predicted_speedup
        if finding.recoverable_s is None or speedup is None:
            continue
        low, high = speedup
        if number in shown and not 0.95 * low <= shown[number] <= 1.05 * high:
            yield f"{finding.id} gains {shown[number]} on the page, not {low} to {high}"
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
