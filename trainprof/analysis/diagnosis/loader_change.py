"""What findings about a loader have in common."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, Final

from trainprof.analysis.code_figures import HotLine
from trainprof.analysis.diagnosis.case import NAMED_FROM_SHARE, Case, LoaderCase
from trainprof.analysis.diagnosis.cheaper_samples import (
    gain_of_line,
    own_share,
    without_line,
)
from trainprof.analysis.diagnosis.constructor_words import own_call
from trainprof.analysis.diagnosis.gains import Gain, of_setting
from trainprof.analysis.diagnosis.loader_cautions import (
    cautions_of,
    needed_first,
    ranks_of,
)
from trainprof.analysis.diagnosis.plain import plain_finding
from trainprof.analysis.diagnosis.rule import Threshold
from trainprof.analysis.diagnosis.side_by_side import gain_beside
from trainprof.analysis.diagnosis.waiting import (
    WAIT_SHARE,
    asleep_share,
    collate_share,
)
from trainprof.analysis.diagnosis.wording import (
    around,
    factor,
    place,
    share_of,
    size,
    skipping,
    span,
)
from trainprof.analysis.facts import number_at
from trainprof.analysis.finding import LOADER_ID, Finding
from trainprof.analysis.loader_builder import settings_of
from trainprof.analysis.loader_figures import Loader
from trainprof.analysis.pipeline import Setting, predict
from trainprof.analysis.verdict_level import percent

# Of the making of batches: from here on it is the dataset that takes it.
_OF_DATASET: Final = 0.5
# What steps would gain without a line is told from here on.
_TOLD_TIMES: Final = 1.1
# Passes over the data, from which on it matters that it is made again; of the free memory that it
# may take.
_PASSES_MINDED: Final = 1.5
_MEMORY_FOR_IT: Final = 0.25
# Of the making of batches, and of a step, up to which more workers than cores are for nothing.
_ASLEEP_MINDED: Final = 0.25
_AS_FAST: Final = 0.1
# What all of them have in common.
WAITED_FROM: Final = {
    "wait_share": Threshold(WAIT_SHARE, "XProf: below it a program is not input-bound"),
}


def of_cause(case: Case, rule: str, cause: str) -> LoaderCase | None:
    """Returns the costliest loader for whose batches training waits because of `cause`."""
    least = case.threshold(rule, "wait_share", WAIT_SHARE)
    return next(
        (
            fed
            for fed in case.feeding
            if fed.cause is not None and fed.cause.name == cause and fed.wait_share >= least
        ),
        None,
    )


def costliest(
    case: Case, fed: Iterable[LoaderCase], lost_s: Callable[[LoaderCase], float], least: float
) -> tuple[float, LoaderCase] | None:
    """Returns the loader that loses most, and what; None where that is less than a share `least`.

    On a device only what it felt counts.

    Args:
        case: The run.
        fed: Its loaders.
        lost_s: Of one of them, in seconds of the host's.
        least: Of training.
    """
    lost = [(one.exposed * lost_s(one), one) for one in fed]
    spent_s, most = max(lost, key=lambda one: one[0], default=(0.0, None))
    if most is None or spent_s <= 0 or spent_s < least * case.training_s:
        return None
    return spent_s, most


def gain_of_cause(case: Case, fed: LoaderCase) -> Gain | None:
    """Returns what the setting that a loader's cause names would give; None without one."""
    cause = fed.cause
    if cause is None or cause.setting is None or cause.found is None:
        return None
    beside = gain_beside(case, fed)
    return of_setting(case, fed, cause.setting, cause.found) if beside is None else beside


def with_workers(fed: LoaderCase, setting: Setting) -> dict[str, Any]:
    """Returns the arguments that make a loader's workers those of a setting."""
    change: dict[str, Any] = {"num_workers": setting.workers}
    if setting.is_persistent and not fed.loader.persistent_workers:
        change["persistent_workers"] = True
    return change


def finding(
    case: Case,
    fed: LoaderCase,
    rule: str,
    title: str,
    gain: Gain,
    *,
    advice: str,
    change: dict[str, Any] | None = None,
    alters: dict[str, Any] | None = None,
    cautions: list[str] | None = None,
    also: list[str] | None = None,
    evidence: dict[str, Any] | None = None,
    site: str | None = None,
    is_of_making: bool = True,
) -> Finding:
    """Returns a finding about a loader, with the numbers that all of them rest on.

    Where it is about the making of batches it says which line that goes to.

    Args:
        case: The run.
        fed: The loader.
        rule: Who finds it.
        title: What was measured.
        gain: What the change would give.
        advice: The change in words.
        change: Its arguments, where it is a matter of them alone.
        alters: Those that the advice names, where it takes more than them.
        cautions: What else than those arguments is to be minded.
        also: What else there is to say.
        evidence: More numbers.
        site: Where it is, if not at the loader.
        is_of_making: It is about the making of batches.
    """
    measured, loader, altered = fed.measured, fed.loader, alters or change or {}
    of_making = _where_it_goes(case, fed, is_unsure=gain.training[0] < 1)
    numbers = {
        LOADER_ID: loader.id,
        "built_by": loader.built_by,
        "wait_share": fed.wait_share,
        "wait_total_s": loader.wait_total_s,
        "wait_per_batch_s": None if measured is None else measured.wait_s,
        "batch_s": None if measured is None else measured.step_s,
        "making_a_batch_s": loader.fetch.wall_s.mean
        if loader.fetch and loader.fetch.wall_s
        else None,
        "workers": loader.num_workers,
        "cores": case.cores(),
        **(evidence or {}),
    }
    return plain_finding(
        rule,
        title,
        gain,
        site=site or loader.site,
        advice=advice,
        evidence=numbers,
        change=change,
        cautions=[*(cautions or []), *cautions_of(fed, altered)],
        also=[
            *(also or []),
            *_of_turns(loader),
            *_of_skipped(case, loader),
            *(of_making if is_of_making else []),
        ],
    )


def _of_turns(loader: Loader) -> list[str]:
    """Says that the figures are those of several loaders."""
    if loader.taking_turns == 1:
        return []
    return [f"the line builds {loader.taking_turns} loaders that take turns: all of them together"]


def _of_skipped(case: Case, loader: Loader) -> list[str]:
    told = skipping(loader, case.training_s)
    return [told] if told else []


def fewer_workers(fed: LoaderCase) -> list[str]:
    """Says so where as many workers as there are cores make batches as fast as more of them do."""
    now, workers = fed.loader.num_workers or 0, 0 if fed.inputs is None else int(fed.inputs.cores)
    if fed.inputs is None or fed.now is None or not 0 < workers < now:
        return []
    if asleep_share(fed.loader.fetch) >= _ASLEEP_MINDED:
        return []
    fewer = predict(fed.inputs, replace(fed.inputs.setting, workers=workers))
    if fewer.step_s.mid > (1 + _AS_FAST) * fed.now.step_s.mid:
        return []
    who = f"{workers} workers" if workers > 1 else "1 worker"
    cores = f"the {workers} cores" if workers > 1 else "the core"
    cores += " that a rank has" if ranks_of(fed) > 1 else ""
    return [
        f"{who} would make batches about as fast on {cores} as {now} do: more of them only wait "
        "for one another, take longer to start, and each takes memory"
    ]


def made_anew(case: Case, fed: LoaderCase) -> list[str]:
    """Says that memory has room for what each pass makes again, where it has."""
    loader, fetch = fed.loader, fed.loader.fetch
    if loader.is_iterable or not loader.length or fetch is None or not fetch.batch_bytes:
        return []
    if loader.iterations < _PASSES_MINDED * loader.length:
        return []
    memory = case.summary.system.memory if case.summary.system else {}
    free = number_at(memory, "host_available_bytes", "min")
    ranks = ranks_of(fed)
    holders = max(loader.num_workers or 0, 1)
    bytes_all = loader.length * fetch.batch_bytes
    if free is None or ranks * holders * bytes_all > _MEMORY_FOR_IT * free:
        return []
    each = " in each worker" if holders > 1 else " in each rank" if ranks > 1 else ""
    return [
        f"each pass makes its samples anew, {size(bytes_all)} as they come out{each}, and "
        f"{size(free)} of memory are free: what is not random in them could be kept from the "
        "first pass on"
    ]


def advised(loader: Loader, change: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Returns a change in words, and its arguments; none where something is to be done first."""
    first = needed_first(loader, change)
    told = "".join(f"{one}, then " for one in first)
    return f"{told}{call_with(loader, change)}", {} if first else change


def call_with(loader: Loader, change: dict[str, Any]) -> str:
    """Returns the call that gives a loader arguments; where nobody knows it, who has to be told."""
    if loader.built_by is None:
        return own_call(loader, {name: repr(value) for name, value in change.items()})
    settings = settings_of(loader.built_by)
    named = None if settings is None else settings.named(change)
    if settings is None or named is None:
        return (
            f"{arguments(change)} for this loader, by the settings of {loader.built_by}, which "
            "builds it"
        )
    return f"{settings.call}(..., {arguments(named)})"


def arguments(change: dict[str, Any]) -> str:
    """Returns arguments as one would write them in a call."""
    return ", ".join(f"{name}={value!r}" for name, value in change.items())


def _where_it_goes(case: Case, fed: LoaderCase, *, is_unsure: bool) -> list[str]:
    """Returns which line the making of batches goes to.

    Args:
        case: The run.
        fed: Who is fed.
        is_unsure: What the finding advises may as well lose.
    """
    line, surer = fed.hot_line(), "; to make that cheaper cannot lose" if is_unsure else ""
    if line is not None:
        lead, other = _most_of_all(fed, line)
        told = where_of_making(fed, line)
        if surer:
            return [f"{told}{surer}{_at_most(case, fed, lead)}"]
        which = "that line" if other is None else "the first"
        return [f"{told}{_without(case, fed, lead, which) if lead is line else ''}"]
    fetch = fed.loader.fetch
    share = 1 - collate_share(fetch)
    if fetch is None or fetch.dataset_s is None or share < _OF_DATASET or not fetch.samples:
        return []
    each = span(fetch.dataset_s / fetch.samples)
    return [
        f"{percent(share)} of making a batch is dataset[i], {each} a sample: trainprof lines shows "
        f"which of its lines take it{surer}"
    ]


def _most_of_all(fed: LoaderCase, line: HotLine) -> tuple[HotLine, HotLine | None]:
    """Returns the lines of the two functions that take most, if both take much; longest first."""
    others = [one for one in fed.loader.hot_lines if one is not line and one.part == line.part]
    other = max(others, key=lambda one: one.share, default=None)
    if other is None or other.share < NAMED_FROM_SHARE:
        return line, None
    return (line, other) if own_share(line) >= own_share(other) else (other, line)


def where_of_making(fed: LoaderCase, line: HotLine) -> str:
    """Returns which lines the making of batches goes to, by the one that is met most."""
    lead, other = _most_of_all(fed, line)
    told = f"{share_of(lead)} of making a batch goes to {place(lead)}"
    return told + (around(lead) if other is None else f", {share_of(other)} to {place(other)}")


def _at_most(case: Case, fed: LoaderCase, line: HotLine) -> str:
    """Returns what steps would gain at most without a line, as far as that is much."""
    gain = gain_of_line(case, fed, line)
    if gain is None or gain.likely < _TOLD_TIMES:
        return ""
    return f", and without it steps would be up to about {gain.likely:.2f} x as fast"


def _without(case: Case, fed: LoaderCase, line: HotLine, which: str) -> str:
    times = without_line(case, fed)
    if times is None or times < _TOLD_TIMES:
        return ""
    more = ", or more" if line.is_at_least else ""
    return f": without {which}, steps would be about {factor(times)} x as fast{more}"
