"""The first screen: how the run ended, the verdict, three numbers, a step in parts, findings."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from trainprof.analysis.summary.finding import Finding, is_small
from trainprof.analysis.summary.levels import number_at, sentence
from trainprof.analysis.summary.run import COMPUTE_KEYS, LEDGER_KEYS, LOADER_KEYS
from trainprof.analysis.summary.run_summary import RunSummary
from trainprof.report.html.blocks import HtmlPage
from trainprof.report.page import memory
from trainprof.report.page.findings import (
    NOTES_SHOWN,
    action_of,
    gain_words,
    in_noise,
    is_code,
    is_of_headline,
    note,
    nothing_words,
    speedup_words,
    together_words,
    whole_of,
)
from trainprof.report.page.hot_lines import hot_line_words
from trainprof.report.text.ending import (
    cause,
    is_failure,
    is_memory_death,
    memory_before_the_end,
    outcome,
    steps_per_second,
)
from trainprof.report.text.ledger import LedgerTable, ledger_table, parts_of
from trainprof.report.text.step_bars import step_rows
from trainprof.report.text.units import (
    byte_count,
    is_known,
    percent,
    seconds,
    share_of,
    three_digits,
)
from trainprof.report.text.whole_run import long_outside

PAGE: Final = HtmlPage(verbose=True)
# Cuts what another program wrote, such as an exception's text.
_CUTTING: Final = HtmlPage()
# Sentences with somebody else's words are cut here, as on the terminal page.
_ENDING_CELLS: Final = 160
_HEADLINE_CELLS: Final = 300
_CARDS: Final = 3
_IDLE: Final = "idle"
_WAITING: Final = "waiting for data"
_KNOWN: Final = frozenset({*LEDGER_KEYS, "communication"})
_LEVELS: Final = {"highly": "bad", "moderately": "warn"}
_HEALTHY: Final = ("compute", "none")


@dataclass(frozen=True, slots=True)
class Figure:
    """One of the three numbers."""

    label: str
    value: str
    detail: str = ""

    @property
    def number_and_unit(self) -> tuple[str, str]:
        number, _, unit = self.value.rpartition(" ")
        return (number, unit) if any(map(str.isdigit, number)) else (self.value, "")


@dataclass(frozen=True, slots=True)
class BarPart:
    """A part of the stacked bar, all in thousandths; `key` of a colour of style.css."""

    label: str
    key: str
    start: float
    width: float
    figures: tuple[str, ...]
    is_idle: bool = False


@dataclass(frozen=True, slots=True)
class StackedBar:
    title: str
    total: str
    parts: list[BarPart]


@dataclass(frozen=True, slots=True)
class Card:
    """A finding; `why`: what stands behind "Why"."""

    number: int
    id: str
    action: str
    gain: str
    site: str | None
    code: str
    advice: str
    measured: list[str]
    flag: str
    notes: list[str]
    why: list[str]


def level(summary: RunSummary) -> str:
    """Returns the colour of the verdict: bad|warn|good, "" where it says nothing."""
    if is_bad_end(summary):
        return "bad"
    if any(not is_small(finding) for finding in summary.findings):
        return "bad"
    is_healthy = (
        summary.training.steps and summary.is_judged and summary.verdict.bottleneck in _HEALTHY
    )
    return _LEVELS.get(summary.verdict.level or "", "good" if is_healthy else "")


def is_bad_end(summary: RunSummary) -> bool:
    """Whether the script failed, hung or was killed; a limit or Ctrl-C is not a failure."""
    has_ended_so = is_failure(summary) or summary.run.exit.reason in ("signal", "killed")
    return has_ended_so or summary.hung is not None


def headline(summary: RunSummary) -> str:
    """Returns the verdict; of a run without steps how it ended."""
    if not summary.training.steps:
        return _CUTTING.shortened(outcome(summary), _ENDING_CELLS)
    words = _CUTTING.shortened(summary.verdict.headline, _HEADLINE_CELLS)
    return f"{words} {nothing_words(summary)}".strip()


def ending_words(summary: RunSummary) -> list[str]:
    """Returns how the run ended and how far it got, then what is known of the end."""
    words = [_CUTTING.shortened(outcome(summary), _ENDING_CELLS)] if summary.training.steps else []
    reason = cause(summary)
    words += [] if reason is None else [f"{_CUTTING.shortened(reason, _ENDING_CELLS)}."]
    words += [] if summary.out_of_memory is None else [memory.ran_out(summary.out_of_memory)]
    words += memory_before_the_end(summary) if is_memory_death(summary) else []
    return words


def beneath_headline(summary: RunSummary) -> list[str]:
    """Returns sentences on start-up and exit, where they are much of the run."""
    return long_outside(summary) if summary.training.steps else []


def figures(summary: RunSummary) -> list[Figure]:
    """Returns three numbers that fit the run."""
    training = summary.training
    step, rate = training.step_s, steps_per_second(summary)
    if not training.steps:
        return _figures_without_steps(summary)
    numbers = [Figure("run", seconds(summary.run.wall_s))]
    if step is not None:
        numbers = [Figure("median step", seconds(step.p50), f"p95 {seconds(step.p95)}")]
    a_second = "" if rate is None else f"{three_digits(rate)} steps/s"
    if is_known(training.samples_per_s):
        numbers.append(
            Figure("throughput", f"{three_digits(training.samples_per_s)} samples/s", a_second)
        )
    elif a_second:
        numbers.append(Figure("throughput", a_second))
    return [*numbers, *_share(summary)]


def _share(summary: RunSummary) -> list[Figure]:
    """Returns how busy the device was; without one, the share of waiting for data, if it has any.

    Else the largest part of a step.
    """
    for device in summary.devices or ():
        if device.busy_share is not None and all(map(is_known, device.busy_share)):
            low, high = device.busy_share
            shares = dict.fromkeys(map(percent, (low, high)))
            busy = f"{percent(low).removesuffix(' %')}–{percent(high)}"
            return [Figure("GPU busy", busy if len(shares) > 1 else percent(low), device.time)]
    step = step_rows(summary)
    if step is None or not step.rows:
        return []
    # The bar's own figures: rounded alone, they may differ by one from those.
    row = next((row for row in step.rows if set(row.keys) == {*LOADER_KEYS}), None)
    if row is None and summary.loaders:
        spent = {k: s for k, s in (summary.training.per_step_s or {}).items() if is_known(s)}
        waited_s = sum(spent.get(key, 0.0) for key in LOADER_KEYS)
        waited = percent(share_of(waited_s, sum(spent.values())))
        return [Figure(_WAITING, waited, f"{seconds(waited_s)} of a step")]
    row = row or step.rows[0]
    return [Figure(row.label, row.percent, f"{row.time} of a step")]


def _figures_without_steps(summary: RunSummary) -> list[Figure]:
    whole_s, spent = summary.ledger.wall_s, summary.ledger.seconds
    numbers = [Figure("run", seconds(summary.run.wall_s))]
    longest = max(spent, key=lambda key: spent[key] if is_known(spent[key]) else 0.0, default=None)
    if longest is not None and is_known(spent[longest]) and spent[longest] > 0:
        part = parts_of(summary, [longest])[0]
        share = percent(share_of(part.seconds, whole_s))
        numbers.append(Figure(part.label, seconds(part.seconds), f"{share} of the run"))
    memory_bytes = number_at(
        summary.system.memory if summary.system else None, "tree_rss_bytes", "max"
    )
    if memory_bytes is not None:
        numbers.append(Figure("peak memory", byte_count(memory_bytes)))
    return numbers


def step_bar(summary: RunSummary) -> StackedBar | None:
    """Returns a step, or a device's training, in the parts of the terminal page.

    Without steps the ledger of the whole run; None where nothing of it was measured.
    """
    step = step_rows(summary)
    if step is not None:
        parts = _placed(
            (row.label, _key(row.keys, row.label), row.share, (row.time, row.percent))
            for row in step.rows
        )
        return StackedBar(step.title, step.total, parts)
    table = ledger_table(summary)
    if table is None:
        return None
    unit = table.run_unit
    keys = ledger_keys(summary, table)
    parts = _placed(
        (row.label, key, row.share, (f"{row.seconds} {unit}", row.percent))
        for key, row in zip(keys, table.rows, strict=True)
    )
    return StackedBar("The whole run", f"{table.total.seconds} {unit}", parts)


def ledger_keys(summary: RunSummary, table: LedgerTable) -> list[str]:
    """Returns the key of each row's colour."""
    by_label = {part.label: part.keys for part in parts_of(summary, LEDGER_KEYS)}
    return [_key(by_label.get(row.label, ())) for row in table.rows]


def _key(keys: Sequence[str], label: str = "") -> str:
    """Returns the key whose colour stands for several."""
    if set(keys) == {*LOADER_KEYS}:
        return "data_wait"
    if label.startswith(_IDLE) and set(keys) >= {*COMPUTE_KEYS}:
        return _IDLE  # between small kernels
    return next((key for key in keys if key in _KNOWN), "rest") if label != "rest" else "rest"


def _placed(rows: Iterable[tuple[str, str, float, tuple[str, ...]]]) -> list[BarPart]:
    parts, start = [], 0.0
    for label, key, share, figures in rows:
        width = round(1000 * min(max(share, 0.0), 1.0), 1)
        is_idle = label.startswith(f"{_IDLE}:")
        parts.append(BarPart(label, key, round(start, 1), width, figures, is_idle))
        start += width
    return parts


def cards(summary: RunSummary) -> tuple[list[Card], list[Card]]:
    """Returns the first findings, and the others, small gains among them."""
    numbered = [(at, finding) for at, finding in enumerate(summary.findings, 1)]
    first = [pair for pair in numbered if not is_small(pair[1])][:_CARDS]
    others = [pair for pair in numbered if pair not in first]
    shown, more = ([_card(at, x, summary) for at, x in pairs] for pairs in (first, others))
    return shown, more


def _card(number: int, finding: Finding, summary: RunSummary) -> Card:
    of_code = is_code(finding.advice)
    measured = [] if is_of_headline(finding, summary) else [sentence(finding.title)]
    if finding.costliest:
        measured.append(sentence(finding.costliest).removesuffix("."))
    expected = speedup_words(finding, whole_of(summary)) or "not estimated"
    return Card(
        number=number,
        id=finding.id,
        action=action_of(finding),
        gain=gain_words(finding),
        site=finding.site,
        code=finding.advice if of_code else "",
        advice="" if of_code else sentence(finding.advice),
        measured=measured,
        flag=finding.flag,
        notes=[note(words) for words in finding.cautions[:NOTES_SHOWN]],
        why=[
            f"Expected: {expected}.",
            *map(sentence, finding.also),
            *(f"Note: {note(words)}" for words in finding.cautions[NOTES_SHOWN:]),
        ],
    )


def after_findings(summary: RunSummary) -> list[str]:
    """Returns what all changes gain together, and what noise hides."""
    if not summary.training.steps:
        return []
    words = (together_words(summary), in_noise(summary, PAGE))
    return [sentence for sentence in words if sentence]


def checked_causes(summary: RunSummary) -> list[str]:
    """Returns the causes that were looked for in vain, of a run without findings."""
    known = {passed.finding.id for passed in summary.passed_over}
    is_sure = summary.findings_from is not None and summary.is_judged and not summary.findings
    is_sure = is_sure and summary.training.steps > 0
    return [rule for rule in summary.rules if rule not in known] if is_sure else []


def hottest(summary: RunSummary) -> list[str]:
    """Returns your hottest lines, each with its file."""
    return hot_line_words(summary, PAGE, with_files=True)
