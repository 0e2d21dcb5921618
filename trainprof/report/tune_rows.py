"""A `tune` run in words and rows, shared by the terminal and the markdown renderer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from trainprof.analysis.diagnosis.case import named_line
from trainprof.analysis.diagnosis.wording import place
from trainprof.analysis.hot_lines import MAKING
from trainprof.analysis.passes import TRAINING
from trainprof.analysis.speedup import FASTER, NO_VISIBLE_DIFFERENCE, SLOWER, UNKNOWN
from trainprof.analysis.summary import RunSummary
from trainprof.analysis.tuning import (
    BASELINE,
    BROKEN,
    BUDGET,
    CEILING,
    INTERRUPTED,
    LOADER_ALONE,
    OK,
    RUNNING,
    TOO_NOISY,
    Times,
    TrialSummary,
    Tuning,
)
from trainprof.report.units import (
    byte_count,
    count,
    counted,
    is_known,
    percent,
    seconds,
    three_digits,
)

NONE_TOLD: Final = "-"
VERDICT_WORDS: Final = {
    FASTER: "faster",
    SLOWER: "slower",
    NO_VISIBLE_DIFFERENCE: "chance",
    UNKNOWN: "",
}
# Of forecasts, by whether they held.
_MARKS: Final = {True: "=", False: "!", None: "?"}
# What changes the numbers themselves: where losses differ that is to be known of each trial.
_NUMERICS: Final = frozenset({"float32_matmul_precision", "cudnn_benchmark"})
# What changes how numbers are added up, and no sample.
_OF_SUMS: Final = _NUMERICS | {"torch_threads", "fused", "foreach"}
_NAMES: Final = {LOADER_ALONE: "loader alone"}
_MOST_LISTED: Final = 5
# By cheaper samples, where no setting helps.
_MUCH_TO_GAIN: Final = 1.3
# A ceiling below this says that loading is not what holds training back.
_HARDLY: Final = 1.03
# Above it an interval does not tell that there is nothing to gain.
_MAY_BE_MORE: Final = 1.2
_NO_COPIES: Final = "copies to the device are not counted in it"
# Seen with data made free by hand as well: memory of the heap is given back and faulted in anew at
# each step, once no batch of the loader's lies at its end.
_OTHER_MEMORY: Final = (
    "its steps were slower, as the same work can be where other memory is in use; a loader that "
    "makes batches elsewhere, in workers say, may do the same to it"
)
_COPYING_COUNTS: Final = (
    "giving copies of batches takes time too, and it is not known how much of that the device "
    "worked through"
)
_SLOWED_SHARE: Final = 0.02
_DISTURBED: Final = 0.05
_CLOCKS_APART: Final = 0.05
_OTHER_LOSSES: Final = (
    "they differ from those of the script as it is, as they may where samples are drawn or changed "
    "at random, or workers share out a stream; where neither is so, samples come out wrong: look "
    "before you take it"
)
_OTHER_SUMS: Final = (
    "they differ from those of the script as it is, as sums in another order or precision make "
    "them: compare where a whole training ends"
)
_UNTIL: Final = {
    BUDGET: "before the time was over",
    INTERRUPTED: "before it was stopped",
    RUNNING: "so far: it is not over, or was killed",
}
# Steps alone and training as a whole tell speeds that many times apart.
_STARTS_TELL: Final = 1.1


def times(value: float | None) -> str:
    """Returns "2.84x"."""
    if value is None or not is_known(value):
        return NONE_TOLD
    return f"{three_digits(value)}x"


def between(low: float | None, high: float | None) -> str:
    """Returns "2.71-2.97x", or as much as an interval tells that is too wide."""
    if low is None or high is None or not (is_known(low) and is_known(high)):
        return NONE_TOLD
    if high > TOO_NOISY * low:
        return f"over {times(low)}" if low >= 1 else "too noisy"
    return f"{three_digits(low)}-{times(high)}"


def name_of(row: TrialSummary) -> str:
    """Returns a trial's name; an argument alone is switched on."""
    return _NAMES.get(row.name, row.name.replace("=True", ""))


def cells(row: TrialSummary) -> tuple[str, ...]:
    """Returns what stands in a row behind the trial's name, as `TITLES` names it."""
    speedup = row.speedup
    is_base = row.name == BASELINE
    interval = None if is_base else speedup
    return (
        str(row.runs),
        NONE_TOLD if row.steps_per_s is None else three_digits(row.steps_per_s),
        NONE_TOLD if speedup is None else times(speedup.mid),
        NONE_TOLD if interval is None else between(interval.low, interval.high),
        NONE_TOLD if row.predicted is None else f"{between(*row.predicted)}{_forecast_mark(row)}",
        NONE_TOLD if row.peak_memory_bytes is None else byte_count(row.peak_memory_bytes),
        NONE_TOLD if row.cpu_percent is None else f"{row.cpu_percent:.0f} %",
        NONE_TOLD if row.read_bytes is None else byte_count(row.read_bytes),
    )


TITLES: Final = (
    "runs",
    "steps/s",
    "speed",
    "95 % sure",
    "predicted",
    "memory",
    "CPU",
    "read",
)


def result_word(row: TrialSummary) -> str:
    """Returns "faster", "slower", "chance", "slower (cut)", or how a trial failed."""
    if row.outcome != OK:
        return row.outcome
    word = "" if row.name in (BASELINE, LOADER_ALONE) else VERDICT_WORDS[row.verdict]
    return f"{word} (cut)".strip() if row.was_cut else word


def _forecast_mark(row: TrialSummary) -> str:
    return f" {_MARKS[row.held]}" if _is_forecast_met(row) else ""


def _is_forecast_met(row: TrialSummary) -> bool:
    """Whether there is something to hold a forecast against; the least that it may be is not."""
    return row.predicted is not None and row.speedup is not None and not row.is_least


def _forecasts_words(rows: Sequence[TrialSummary]) -> list[str]:
    """Says how often forecasts were right, and what the marks in the rows mean."""
    held = [row.held for row in rows if _is_forecast_met(row)]
    if not held:
        return []
    told = (
        f"{held.count(True)} right ({_MARKS[True]}: measured wholly inside), "
        f"{held.count(False)} wrong ({_MARKS[False]}: wholly outside), "
        f"{held.count(None)} not told ({_MARKS[None]}: neither)"
    )
    learned = [name_of(row) for row in rows if row.learned_from is not None]
    by = f"; that of {' and '.join(learned)} is by what was measured before" if learned else ""
    return [f"{told}{by}"]


def what_was_done(summary: RunSummary, tuning: Tuning) -> list[str]:
    """Returns how many trials there were, and what they took."""
    runs = sum(row.runs for row in summary.trials)
    return [
        f"{counted(runs, 'run')} of {counted(len(summary.trials), 'trial')}",
        f"{seconds(tuning.spent_s)} of {seconds(tuning.budget_s)}",
        f"each {_length(summary.trials, tuning.trial_steps)}",
    ]


def _length(rows: Sequence[TrialSummary], steps: int | None) -> str:
    if steps is None:
        return "to the script's end"
    quick = [row for row in rows if row.overrides and (row.steps or 0) > steps]
    return f"up to {count(steps)} steps{', quick ones more' if quick else ''}"


def headline(summary: RunSummary) -> str:
    """Returns the result in one sentence."""
    best = summary.recommended
    if best is not None:
        return (
            f"{times(best.speedup.mid)} AS FAST with {best.name}"
            f" ({between(best.speedup.low, best.speedup.high)}, measured)"
        )
    refused = _fastest_refused(summary.trials)
    if refused is not None and refused.speedup is not None:
        return (
            f"NOTHING IS RECOMMENDED: {refused.name} is {times(refused.speedup.mid)} as fast, "
            "but see Against"
        )
    tried = [row for row in summary.trials if row.overrides]
    measured = [row for row in tried if row.outcome == OK and row.speedup is not None]
    if summary.tuning is not None and summary.tuning.ended_by in (BUDGET, INTERRUPTED, RUNNING):
        found = "NO CHANGE COULD BE MEASURED" if tried else "NO CHANGE WAS TRIED"
        found = "NOTHING FASTER WAS FOUND" if measured else found
        return f"{found} {_UNTIL[summary.tuning.ended_by]}"
    if not tried:
        return "NOTHING TO TRY: no setting from outside promises 3 % or more"
    if not measured:
        return f"NO CHANGE COULD BE MEASURED, of {len(tried)} tried"
    lost = len(tried) - len(measured)
    of_them = (
        f"{len(measured)} measured ({lost} more could not be)" if lost else f"{len(tried)} tried"
    )
    return f"NOTHING WAS VISIBLY FASTER than the script as it is, of {of_them}"


def _fastest_refused(rows: Sequence[TrialSummary]) -> TrialSummary | None:
    """Returns the fastest of the settings that something else than their pace speaks against."""
    refused = [row for row in rows if row.against and row.outcome == OK and row.verdict == FASTER]
    speeds = [(row.speedup.mid, row) for row in refused if row.speedup is not None]
    return max(speeds, key=lambda pair: pair[0])[1] if speeds else None


def _instead_of_settings(summary: RunSummary) -> str:
    """Says what may give what free data does, where no setting that was measured did."""
    tuning = summary.tuning
    if tuning is not None and any(_is_of_loading(name) for name in tuning.unfinished):
        return "a setting that may give some of it was not tried yet"
    samples = f"cheaper samples may: {_dearest_line(summary)}"
    tried = [row.outcome for row in summary.trials if any(map(_is_of_loading, row.overrides))]
    if OK in tried:
        return f"no setting gave it, {samples}"
    could = "no setting of loading could be measured" if tried else "no setting of loading is tried"
    return f"{could}, {samples}"


def _is_of_loading(name: str) -> bool:
    return "num_workers" in name or "prefetch_factor" in name


def _dearest_line(summary: RunSummary) -> str:
    """Returns where most of making a batch goes, as the run without changes tells it."""
    of_training = [one for one in summary.loaders if one.role == TRAINING]
    dearest = max(of_training, key=lambda one: one.wait_total_s, default=None)
    line = named_line(dearest.hot_lines, MAKING) if dearest is not None else None
    if line is None:
        return "trainprof lines SCRIPT shows which of their lines cost"
    return f"look at {place(line)} first"


def remarks(summary: RunSummary) -> list[tuple[str, str]]:
    """Returns what the rows mean, as labelled sentences."""
    found: list[tuple[str, str]] = []
    rows = {row.name: row for row in summary.trials}
    best = None if summary.recommended is None else summary.recommended.name
    if summary.recommended is not None:
        found += _losses(rows[summary.recommended.name])
        found += [("Note", caution) for caution in summary.recommended.cautions]
    found += [
        ("Against", f"{name_of(row)}: {why}") for row in summary.trials for why in row.against
    ]
    ceiling = rows.get(CEILING)
    if ceiling is not None and ceiling.speedup is not None:
        words = _ceiling_words(ceiling, ceiling.speedup, is_on_device=bool(summary.devices))
        is_left = summary.recommended is None and ceiling.verdict == FASTER
        is_left = is_left and _fastest_refused(summary.trials) is None
        if is_left and ceiling.speedup.mid >= _MUCH_TO_GAIN:
            words += f"; {_instead_of_settings(summary)}"
        found.append(("Ceiling", words))
    alone = rows.get(LOADER_ALONE)
    if alone is not None and alone.speedup is not None and alone.speedup.is_telling:
        found.append(("Loader", _alone_words(alone.speedup)))
    found += [("Starts", sentence) for row in summary.trials for sentence in _starts_words(row)]
    found += [("Loaders", sentence) for sentence in _loader_words(summary.trials)]
    tuning = summary.tuning
    if tuning is None:
        return found
    found += [
        ("Losses", f"{name_of(row)}: they differ from those of the script as it is")
        for row in summary.trials
        if row.losses == "other" and _NUMERICS & set(row.overrides) and row.name != best
    ]
    if tuning.needed_budget_s is not None:
        found.append(("Budget", _too_small(tuning.needed_budget_s)))
    found += [("Forecasts", sentence) for sentence in _forecasts_words(summary.trials)]
    found += [
        ("Cut", f"{name_of(row)}: its time was over before it was done; what it did by then counts")
        for row in summary.trials
        if row.was_cut and row.outcome == OK
    ]
    place = summary.run.directory
    found += [("Failed", _failed_words(row, place)) for row in summary.trials if row.outcome != OK]
    found += [
        ("Refused", f"{name_of(row)}: {what}: {why}")
        for row in summary.trials
        for what, why in row.refused.items()
    ]
    found += [("Machine", sentence) for sentence in _machine(summary.trials)]
    found += [("Note", note) for note in tuning.notes]
    if tuning.uncontained:
        found.append(("Outside", f"Trials also {_listed(tuning.uncontained)}"))
    if tuning.unfinished:
        found.append(("Not tried", ", ".join(tuning.unfinished)))
    return found


def _listed(entries: Sequence[str]) -> str:
    more = len(entries) - _MOST_LISTED
    return "; ".join(entries[:_MOST_LISTED]) + (f"; and {more} more" if more > 0 else "")


def _loader_words(rows: Sequence[TrialSummary]) -> list[str]:
    """Says which loaders the numbers of a trial are of, where it changes several."""
    by_line = [
        list(row.overrides["num_workers"])
        for row in rows
        if isinstance(row.overrides.get("num_workers"), dict)
    ]
    told = dict.fromkeys(", ".join(lines) for lines in by_line)
    return [f"the numbers of workers are, in this order, those of {lines}" for lines in told]


def _losses(row: TrialSummary) -> list[tuple[str, str]]:
    if row.losses == "same":
        return [("Losses", "the first ones are those of the script as it is, to about six digits")]
    if row.losses == "other":
        is_of_sums = set(row.overrides) <= _OF_SUMS
        return [("Losses", _OTHER_SUMS if is_of_sums else _OTHER_LOSSES)]
    return []


def _ceiling_words(row: TrialSummary, speedup: Times, *, is_on_device: bool) -> str:
    if row.is_least and (speedup.mid < _HARDLY or row.verdict == FASTER):
        return _least_words(speedup)
    if speedup.mid < _HARDLY:
        if speedup.high is not None and speedup.high > _MAY_BE_MORE:
            return (
                "batches that cost nothing made it no faster, but trials differ too much to be "
                f"sure: up to {times(speedup.high)}"
            )
        words = "batches that cost nothing make it no faster"
        if is_on_device:
            return f"{words}: making them does not hold it back; {_NO_COPIES}"
        words += ": loading does not hold it back"
        return f"{words}; {_OTHER_MEMORY}" if row.verdict == SLOWER else words
    if row.verdict != FASTER:
        return (
            f"with batches that cost nothing it was {times(speedup.mid)} as fast, but trials "
            "differ too much to tell that from chance: what loading costs is not known"
        )
    words = f"with batches that cost nothing it is {times(speedup.mid)} as fast"
    if row.run_speedup is not None:
        words += f", {times(row.run_speedup.mid)} over the whole run"
    if is_on_device:
        return f"{words}: no change of how batches are made can give more; {_NO_COPIES}"
    return f"{words}: no change of loading can give more"


def _least_words(speedup: Times) -> str:
    least = f"it is at least {times(speedup.mid)} as fast"
    if speedup.mid < _HARDLY:
        least = "it may be faster or not"
    return f"with batches that cost nothing {least}: {_COPYING_COUNTS}"


def _starts_words(row: TrialSummary) -> list[str]:
    """Says what starts of passes take or save, where steps alone tell another speed."""
    all_of_it, steps = row.speedup, row.steps_speedup
    if all_of_it is None or steps is None or not row.overrides:
        return []
    name, of_steps = name_of(row), f"steps alone are {times(steps.mid)} as fast"
    if steps.mid > _STARTS_TELL * all_of_it.mid:
        return [f"{name}: its {of_steps}; starting each pass over the data takes the rest"]
    if all_of_it.mid > _STARTS_TELL * steps.mid:
        return [f"{name}: its {of_steps}; the rest is saved at the start of each pass"]
    return []


def _alone_words(speedup: Times) -> str:
    if speedup.mid < 1:
        return f"without any training it would make batches at {times(speedup.mid)} the pace"
    return f"without any training it makes batches {times(speedup.mid)} as fast as they are used"


def _too_small(needed_s: float) -> str:
    """Says what budget lets a change be tried."""
    return (
        f"there was no time for a change: a baseline and one change need about {seconds(needed_s)} "
        f"(--budget {needed_s:.0f}s)"
    )


def _failed_words(row: TrialSummary, directory: str | None) -> str:
    detail = f": {row.detail}" if row.detail else ""
    words = f"{name_of(row)}: {row.outcome}{detail}"
    if row.outcome not in BROKEN or directory is None or len(row.directories) != 1:
        return words
    return f"{words}; what it wrote is in {directory}/{row.directories[0]}/console"


def _machine(rows: Sequence[TrialSummary]) -> list[str]:
    """Says what disturbed the trials: then they may not be alike."""
    found = []
    disturbed = [row for row in rows if row.conditions.get("disturbance", 0.0) >= _DISTURBED]
    if disturbed:
        found.append(
            f"other processes kept the CPU busy during {len(disturbed)} of "
            f"{counted(len(rows), 'trial')}: "
            "a quiet one gives narrower intervals"
        )
    stolen = max((row.conditions.get("stolen_share", 0.0) for row in rows), default=0.0)
    if stolen >= _SLOWED_SHARE:
        found.append(f"up to {percent(stolen)} of the CPU went to other virtual machines")
    throttled = max((row.conditions.get("throttled_share", 0.0) for row in rows), default=0.0)
    if throttled >= _SLOWED_SHARE:
        found.append("a CPU quota stopped the script now and then")
    clocks = [row.conditions["cpu_mhz"] for row in rows if row.conditions.get("cpu_mhz")]
    if clocks and max(clocks) > (1 + _CLOCKS_APART) * min(clocks):
        found.append(f"clock rates were not alike: {min(clocks):,.0f} to {max(clocks):,.0f} MHz")
    return found
