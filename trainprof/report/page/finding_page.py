"""One rule explained, and the numbers that a run's finding rests on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from rich.text import Text

from trainprof.analysis.summary.finding import (
    LIKELY,
    LOADER_ID,
    SHARE_OF,
    Finding,
    RuleText,
    comes_once,
)
from trainprof.analysis.summary.levels import sentence
from trainprof.analysis.summary.run import COMPUTE_KEYS
from trainprof.analysis.summary.run_summary import RunSummary
from trainprof.report.page.findings import (
    action_of,
    note,
    speedup_words,
    whole_of,
    why_passed_over,
)
from trainprof.report.text.layout import BLANK, Page
from trainprof.report.text.ledger import label_of, parts_of
from trainprof.report.text.safe_text import with_safe_text
from trainprof.report.text.units import (
    NOT_MEASURED,
    byte_count,
    count,
    is_known,
    percent,
    seconds,
    share_of,
)

# From here on a number has no decimals: three digits have none left.
_WHOLE_FROM: Final = 100
# Of the ledger: keys of computing, from which on they have one name.
_MANY_KEYS: Final = 4
_STEPS_SHOWN: Final = 3
# Among the evidence, and of no use to a reader.
_HIDDEN: Final = (LIKELY, LOADER_ID, SHARE_OF)
# What the page calls evidence.
_NAMES: Final = {
    "making_a_batch_s": "batch preparation",
    "batch_s": "step",
    "wait_per_batch_s": "wait a step",
    "python_s": "Python in the loop",
    "looks": "samples",
    "looks_that_waited": "samples that waited",
    "passes": "epochs",
    "left_out_as_our_own_s": "trainprof itself, left out",
}
# With fewer, samples may be too few.
_SAMPLED_ENOUGH_STEPS: Final = 100


def render_rule(rule: RuleText, page: Page) -> str:
    """Returns what a rule means, how it is measured, when it is wrong, and what to do."""
    lines = [Text(rule.id, style="bold")]
    for paragraph in (rule.explanation or "").split("\n\n"):
        lines += [*BLANK, *page.paragraph(" ".join(paragraph.split()))]
    lines += BLANK
    if rule.thresholds:
        lines.append(Text("Thresholds, changed by --rule NAME=VALUE:"))
    for name, threshold in rule.thresholds.items():
        setting = f"{rule.id}.{name}={threshold.value:g}: {threshold.source}"
        lines += page.paragraph(setting, indent=2)
    return page.written(lines)


def render_why(
    summary: RunSummary, rule: RuleText, page: Page, settings: Mapping[str, float] | None = None
) -> str:
    """Returns what a run's finding rests on, or why the rule has none there, as a verbose page.

    `settings`: thresholds by which the run was judged in place of the usual ones, by "rule.name".
    """
    summary, page = with_safe_text(summary), replace(page, verbose=True)
    sought = {
        name: (settings or {}).get(f"{rule.id}.{name}", threshold.value)
        for name, threshold in rule.thresholds.items()
    }
    shown = next((x for x in summary.findings if x.id == rule.id), None)
    passed = next((x for x in summary.passed_over if x.finding.id == rule.id), None)
    finding = shown or (passed.finding if passed else None)
    if finding is None:
        return page.written(_not_found(summary, rule, sought, page))
    at = "" if finding.site is None else f" at {finding.site}"
    lines = page.paragraph(f"{finding.id}{at}: {action_of(finding)}", style="bold")
    lines += page.paragraph(sentence(finding.title))
    if shown is None and passed is not None:
        lines += page.paragraph(f"It is not reported: {why_passed_over(passed, summary)}.")
    for also in filter(None, (finding.costliest, *finding.also)):
        lines += page.paragraph(sentence(also))
    lines += BLANK
    if shown is not None:
        lines += page.labelled("Change", [shown.advice])
        lines += page.labelled("Flag", [shown.flag])
    lines += _gain(finding, page, summary)
    if shown is not None:
        lines += page.labelled_rows("Note", ([note(caution)] for caution in shown.cautions))
    lines += _numbers(finding, page)
    lines += _from(rule, finding.thresholds if shown else finding.thresholds or sought, page)
    if shown is not None:
        lines += [*_steps(shown, rule, page), *page.labelled("Verify", [shown.verify])]
    more = f"trainprof report --explain {finding.id}"
    return page.written([*lines, *page.commands("Next:", [(more, "what it means")])])


def _not_found(
    summary: RunSummary, rule: RuleText, sought: Mapping[str, float], page: Page
) -> list[Text]:
    why = summary.verdict.headline
    if summary.is_judged:
        why = "It is absent, below its thresholds, or would gain too little."
        if summary.training.steps < _SAMPLED_ENOUGH_STEPS:
            why += " This run is short: it may have too few samples of it."
    return [
        *page.paragraph(f"{rule.id} was not found in {summary.run.name}. {why}"),
        *(_spent(summary, rule, page) if summary.is_judged else []),
        *_from(rule, sought, page),
    ]


def _spent(summary: RunSummary, rule: RuleText, page: Page) -> list[Text]:
    """What the ledger has of a rule's keys: of the wall time, and of a mean steady step."""
    whole_s = sum((summary.training.per_step_s or {}).values())
    fragments = []
    for part in parts_of(summary, rule.traits.keys):
        shares = [(share_of(part.seconds, summary.ledger.wall_s), "the run")]
        if part.per_step_s:
            shares.append((share_of(part.per_step_s, whole_s), "a step"))
        known = [f"{percent(share)} of {whole}" for share, whole in shares if share]
        # What stands in brackets explains a label; here that would meet the shares.
        named = f"{part.label.partition(' (')[0]} {seconds(part.seconds)}"
        fragments.append(f"{named} ({', '.join(known)})" if known else named)
    return page.labelled("Measured", fragments)


def _numbers(finding: Finding, page: Page) -> list[Text]:
    names = {"python_share": f"share of {finding.evidence.get(SHARE_OF, 'training')}"}
    fragments = [
        f"{names.get(name) or _name(name)} {_figure(name, value)}"
        for name, value in finding.evidence.items()
        if name not in _HIDDEN and value not in (None, [], {}) and not _is_nothing(value)
    ]
    return page.labelled("Measured", fragments)


def _is_nothing(value: object) -> bool:
    return isinstance(value, float) and value == 0


def _from(rule: RuleText, thresholds: Mapping[str, float], page: Page) -> list[Text]:
    fragments = []
    for name, value in thresholds.items():
        known, figure = rule.thresholds.get(name), _figure(name, value)
        is_upper = known is not None and known.is_upper
        fragments.append(
            f"{_name(name)} up to {figure}" if is_upper else f"{_name(name)} from {figure}"
        )
    return page.labelled("Thresholds", fragments)


def _gain(finding: Finding, page: Page, summary: RunSummary) -> list[Text]:
    fragments = [speedup_words(finding, whole_of(summary)) or "not estimated"]
    if finding.recoverable_s is not None and not comes_once(finding):
        fragments.append(f"{seconds(finding.recoverable_s)} of the {whole_of(summary)}")
    return page.labelled("Expected", fragments)


def _steps(finding: Finding, rule: RuleText, page: Page) -> list[Text]:
    part = _part_words(rule.traits.keys)
    rows = [
        f"step {count(int(step['step']) + 1)} took {seconds(step['seconds'])}, "
        f"{seconds(step['part_s'])} of it {part}"
        for step in finding.steps[:_STEPS_SHOWN]
    ]
    return page.labelled_rows("Shown by", ([row] for row in rows))


def _part_words(keys: Sequence[str]) -> str:
    if len(keys) >= _MANY_KEYS and set(keys) <= set(COMPUTE_KEYS):
        return "computing"
    if "data_wait" in keys:
        return "waiting for data"
    # What stands in brackets explains a label.
    words = [label_of(key).partition(" (")[0] for key in keys]
    *names, last = words or ["this"]
    return f"{', '.join(names)} and {last}" if names else last


def _name(key: str) -> str:
    """Returns a number's name without its unit, which its figure has."""
    words = key.removesuffix("_bytes").split("_")
    return _NAMES.get(key) or " ".join(word for word in words if word != "s")


def _figure(name: str, value: Any) -> str:
    """Returns a number in the unit that its name has, of several each; a text as it is."""
    if isinstance(value, dict):
        return ", ".join(_entry(name, key, part) for key, part in value.items())
    if isinstance(value, list):
        return ", ".join(map(_item, value))
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return NOT_MEASURED if value is None else str(value)
    words = name.split("_")
    if "share" in words:
        return percent(value)
    if "s" in words or "seconds" in words:
        return seconds(value)
    if "bytes" in words:
        return byte_count(value)
    is_whole = not is_known(value) or float(value).is_integer()
    return count(value) if is_whole or abs(value) >= _WHOLE_FROM else f"{value:.3g}"


def _item(value: Any) -> str:
    """Returns one of several as it is; a change of another loader by its line and arguments."""
    if not isinstance(value, dict):
        return str(value)
    change = value.get("change")
    arguments = change.items() if isinstance(change, dict) else ()
    return " ".join([str(value.get("site")), *(f"{key}={x!r}" for key, x in arguments)])


def _entry(name: str, key: object, value: Any) -> str:
    if isinstance(value, str):
        return f"{value} ({key})"
    # Two numbers in a row would be read as one.
    label = f"{key}:" if str(key).isdecimal() else key
    return f"{label} {_figure(name, value)}"
