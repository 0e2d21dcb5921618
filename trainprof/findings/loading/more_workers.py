"""More workers for a loader, or what is left where they may as well lose."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from trainprof.analysis.pipeline.bounds import Setting
from trainprof.analysis.summary.finding import (
    MODELLED_WORKERS,
    Finding,
    is_unsure,
)
from trainprof.findings.loading.cheaper_samples import (
    cheaper_samples,
    gain_of_cheaper_samples,
    own_share,
)
from trainprof.findings.loading.loader_change import (
    advised,
    call_with,
    finding,
    gain_of_cause,
    with_workers,
)
from trainprof.findings.loading.waiting import ASLEEP_SHARE, asleep_share, reading_share
from trainprof.findings.ranking import passed_over_for
from trainprof.findings.rule import Rule
from trainprof.findings.run_context import Case, LoaderCase
from trainprof.findings.tune_support import rerun_words

# Of the fetch time: a disk that takes this share of it may have no more to give.
_READING_SHARE: Final = 0.2
# Of steps: workers that may lose, and most likely give no more than that, come behind a function
# that takes so much of making a batch, and hardly sleeps over it.
_LITTLE_TIMES: Final = 1.3
_NEARLY_ALL: Final = 0.8
_HARDLY_ASLEEP: Final = 0.2
# Likewise: a line that takes so much of it by itself is named ahead of all else.
_MOST: Final = 0.5


def more_workers(case: Case, fed: LoaderCase, rule: Rule, title: str) -> Finding | None:
    """Returns the finding that a loader should have the workers that its cause names.

    Where they may as well lose, and do not promise enough to be told, or little where one function
    takes nearly all of making a batch: that samples should be cheaper, at its line.

    Args:
        case: The run.
        fed: The loader.
        rule: Who finds it.
        title: What was measured.
    """
    assert fed.cause is not None
    setting, gain = fed.cause.setting, gain_of_cause(case, fed)
    if setting is None or gain is None:
        return None
    fetch = fed.loader.fetch
    if reading_share(fetch) >= _READING_SHARE or asleep_share(fetch) >= ASLEEP_SHARE:
        # Nobody knows what it gives to more of them at once: one disk, a lock, a rate limit.
        gain = replace(
            gain, training=(1.0, gain.training[1]), run=(1.0, gain.run[1]), is_at_most=True
        )
    wanted = with_workers(fed, setting)
    workers, change = advised(fed.loader, wanted)
    found = finding(
        case,
        fed,
        rule.id,
        title,
        gain,
        advice=workers,
        change=change,
        alters=wanted,
        evidence={MODELLED_WORKERS: setting.workers},
    )
    if not is_unsure(found):
        return found
    is_little = passed_over_for(found, rule, case) is not None
    is_little |= gain.likely <= _LITTLE_TIMES and _is_one_function(fed)
    return (_by_cheaper_samples(case, fed, rule.id, title, setting) if is_little else None) or found


def _by_cheaper_samples(
    case: Case, fed: LoaderCase, rule: str, title: str, setting: Setting
) -> Finding | None:
    gain = gain_of_cheaper_samples(case, fed)
    if gain is None:
        return None
    workers = call_with(fed.loader, with_workers(fed, setting))
    rerun = rerun_words(case, fed, setting.workers)
    more = "more workers" if fed.loader.num_workers else "workers"
    line, site, built = fed.hot_line(), None, list[str]()
    if line is not None and own_share(line) >= _MOST:
        site, built = line.site, [f"the loader is built at {fed.loader.site}"]
    return finding(
        case,
        fed,
        rule,
        f"{title}; {more} may take as much from training as they give",
        gain,
        advice=cheaper_samples(line, fed.loader),
        also=[*built, f"whether {workers} helps only a rerun tells: {rerun}"],
        site=site,
    )


def _is_one_function(fed: LoaderCase) -> bool:
    """Whether nearly all of making batches is the computing of one function."""
    line = fed.hot_line()
    if line is None or line.share < _NEARLY_ALL:
        return False
    return asleep_share(fed.loader.fetch) <= _HARDLY_ASLEEP
