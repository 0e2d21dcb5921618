"""More workers for a loader, or what is left where they may as well lose."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from trainprof.analysis.diagnosis.case import Case, LoaderCase
from trainprof.analysis.diagnosis.cheaper_samples import (
    cheaper_samples,
    gain_of_cheaper_samples,
    gain_of_line,
    own_share,
    without_line,
)
from trainprof.analysis.diagnosis.gains import Gain
from trainprof.analysis.diagnosis.loader_cautions import cautions_of
from trainprof.analysis.diagnosis.loader_change import (
    advised,
    call_with,
    finding,
    gain_of_cause,
    made_anew,
    where_of_making,
    with_workers,
)
from trainprof.analysis.diagnosis.side_by_side import SideBySide, side_by_side
from trainprof.analysis.diagnosis.tuneable import rerun_words
from trainprof.analysis.diagnosis.waiting import ASLEEP_SHARE, asleep_share, reading_share
from trainprof.analysis.diagnosis.wording import place
from trainprof.analysis.diagnosis.worth import passed_over_for
from trainprof.analysis.finding import (
    BESIDE,
    COSTLY_LINE,
    LOADER_ID,
    MODELLED_WORKERS,
    WITHOUT_LINE,
    Finding,
    is_unsure,
)
from trainprof.analysis.least_gain import LEAST_GAIN
from trainprof.analysis.pipeline import Setting

# Of the fetch time: a disk that takes this share of it may have no more to give.
_READING_SHARE: Final = 0.2
# Of what workers give at most: a line that would give so much more comes ahead of them.
_MUCH_MORE: Final = 1.3
# Of steps: workers that may lose, and most likely give no more than that, come behind a function
# that takes so much of making a batch, and hardly sleeps over it.
_LITTLE_TIMES: Final = 1.3
_NEARLY_ALL: Final = 0.8
_HARDLY_ASLEEP: Final = 0.2
# Likewise: a line that takes so much of it by itself is named ahead of all else.
_MOST: Final = 0.5


def more_workers(
    case: Case, fed: LoaderCase, rule: str, keys: Sequence[str], title: str
) -> Finding | None:
    """Returns the finding that a loader should have the workers that its cause names.

    Where the line of the dataset that takes most of a batch would give much more, it is named ahead
    of them: nobody knows whether it is work that has to be done, so that the place and the gain
    stay those of the workers. Where they may as well lose, and do not promise enough to be told, or
    much less than that line, or little where one function takes nearly all of it: that samples
    should be cheaper, at that line.

    Args:
        case: The run.
        fed: The loader.
        rule: Who finds it.
        keys: Of the ledger, that the rule is about.
        title: What was measured.
    """
    assert fed.cause is not None
    setting, gain, beside = fed.cause.setting, gain_of_cause(case, fed), side_by_side(case, fed)
    if beside is not None:
        setting, gain = beside.setting, beside.gain
    if setting is None or gain is None:
        return None
    fetch = fed.loader.fetch
    if reading_share(fetch) >= _READING_SHARE or asleep_share(fetch) >= ASLEEP_SHARE:
        # Nobody knows what it gives to more of them at once: one disk, a lock, a rate limit.
        gain = replace(
            gain, training=(1.0, gain.training[1]), run=(1.0, gain.run[1]), is_at_most=True
        )
    times = _times_without_line(case, fed)
    found = _by_workers(case, fed, rule, title, setting, gain, times)
    if beside is not None:
        found = _with_others(found, fed, beside)
    if not is_unsure(found):
        return found
    is_little = passed_over_for(found, keys, case) is not None or _gives_more(times, gain)
    is_little |= gain.likely <= _LITTLE_TIMES and _is_one_function(fed)
    return (_by_cheaper_samples(case, fed, rule, title, setting) if is_little else None) or found


def _by_workers(
    case: Case,
    fed: LoaderCase,
    rule: str,
    title: str,
    setting: Setting,
    gain: Gain,
    times: float | None,
) -> Finding:
    wanted, line = with_workers(fed, setting), fed.hot_line()
    workers, change = advised(fed.loader, wanted)
    evidence: dict[str, Any] = {MODELLED_WORKERS: setting.workers}
    is_surer, says_where = _is_surer(times, gain), True
    if line is not None and times is not None and (is_surer or _gives_more(times, gain)):
        title, says_where = f"{where_of_making(fed, line)}; {title}", False
        then = "then perhaps" if is_surer else "meanwhile"
        workers = f"cheaper samples first: {place(line)}; {then} {workers}"
        evidence |= {COSTLY_LINE: line.site, WITHOUT_LINE: times}
    return finding(
        case,
        fed,
        rule,
        title,
        gain,
        advice=workers,
        change=change,
        alters=wanted,
        evidence=evidence,
        is_of_making=says_where,
    )


def _with_others(found: Finding, fed: LoaderCase, beside: SideBySide) -> Finding:
    """Adds what other loaders need, without which training would wait for them instead."""
    calls, changes, cautions = [], [], []
    for other, setting in beside.others:
        site, wanted = other.loader.site, with_workers(other, setting)
        # What one line builds is changed at once.
        if site == fed.loader.site:
            continue
        call, change = advised(other.loader, wanted)
        calls.append(f"and at {site} {call}")
        changes.append({"site": site, LOADER_ID: other.loader.id, "change": change})
        told = cautions_of(other, wanted)
        cautions += [f"at {site}: {one}" for one in told if one not in found.cautions]
    if not calls:
        return found
    sites = " and ".join(dict.fromkeys(str(one["site"]) for one in changes))
    gives = f"steps would be up to about {beside.alone:.2f} x as fast"
    alone = gives if beside.alone >= 1 + LEAST_GAIN else "nothing would be gained"
    return replace(
        found,
        advice=", ".join([found.advice, *dict.fromkeys(calls)]),
        evidence={**found.evidence, BESIDE: changes, "alone_speedup": beside.alone},
        cautions=[*found.cautions, *dict.fromkeys(cautions)],
        also=[
            f"without the change at {sites} {alone}: training would wait there",
            *found.also,
        ],
    )


def _by_cheaper_samples(
    case: Case, fed: LoaderCase, rule: str, title: str, setting: Setting
) -> Finding | None:
    gain = gain_of_cheaper_samples(case, fed)
    if gain is None:
        return None
    workers = call_with(fed.loader, with_workers(fed, setting))
    rerun = rerun_words(case, fed, setting.workers)
    more = "more workers" if fed.loader.num_workers else "workers"
    line, site = fed.hot_line(), None
    title = f"{title}; {more} may take as much from training as they give"
    built: list[str] = []
    if line is not None and own_share(line) >= _MOST:
        title, site = f"{where_of_making(fed, line)}; {title}", line.site
        built = [f"the loader is built at {fed.loader.site}"]
    return finding(
        case,
        fed,
        rule,
        title,
        gain,
        advice=cheaper_samples(line, fed.loader),
        also=[
            *built,
            f"whether {workers} helps only a rerun tells: {rerun}",
            *made_anew(case, fed),
        ],
        site=site,
        is_of_making=site is None,
    )


def _times_without_line(case: Case, fed: LoaderCase) -> float | None:
    """Returns how many times as fast steps were without the line that most of a batch goes to.

    None where that is not known.
    """
    line = fed.hot_line()
    if line is None:
        return None
    if not fed.loader.num_workers:
        return without_line(case, fed)
    gain = gain_of_line(case, fed, line)
    return None if gain is None else gain.likely


def _is_one_function(fed: LoaderCase) -> bool:
    """Whether nearly all of making batches is the computing of one function."""
    line = fed.hot_line()
    if line is None or line.share < _NEARLY_ALL:
        return False
    return asleep_share(fed.loader.fetch) <= _HARDLY_ASLEEP


def _is_surer(times: float | None, gain: Gain) -> bool:
    """Whether the line would give as much as workers, which may as well lose."""
    return times is not None and gain.training[0] < 1 and times >= gain.likely


def _gives_more(times: float | None, gain: Gain) -> bool:
    """Whether the line, made cheap, would give much more than workers can."""
    return times is not None and times >= _MUCH_MORE * gain.training[1]
