"""What is advised where workers are too few: more of them, or cheaper samples."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from trainprof.analysis.pipeline.bounds import Setting
from trainprof.analysis.summary.code import HotLine
from trainprof.analysis.summary.finding import (
    MODELLED_WORKERS,
    Finding,
    is_unsure,
)
from trainprof.analysis.summary.levels import percent
from trainprof.analysis.summary.loader import Loader
from trainprof.findings.gain import inputs_gain, passed_over_for
from trainprof.findings.loading.loader_change import (
    MOST_CAUTIONS,
    advised,
    call_with,
    gain_of_cause,
    loader_finding,
    share_of_preparation,
    with_workers,
)
from trainprof.findings.loading.model_inputs import without_part
from trainprof.findings.loading.waiting import (
    ASLEEP_SHARE,
    asleep_share,
    collate_share,
    reading_share,
)
from trainprof.findings.rule import Rule
from trainprof.findings.run_context import Feeder, RunContext
from trainprof.findings.tune_support import rerun_words
from trainprof.findings.wording import inside, is_nameless

# Of the fetch time: a disk that takes this share of it may be at its limit.
_READING_SHARE: Final = 0.2
# Times as fast: workers that may lose, and promise no more than this, come behind a function that
# takes this share of batch preparation and hardly sleeps in it.
_LITTLE_TIMES: Final = 1.3
_NEARLY_ALL: Final = 0.8
_HARDLY_ASLEEP: Final = 0.2
# Likewise: a line that takes this share of it by itself is the site of the finding.
_MOST: Final = 0.5
_HALF: Final = 0.5
# Hugging Face's, where no line of the user's prepares samples: it decodes all columns.
_OF_COLUMNS: Final = "Dataset"
CHEAPER: Final = "Make the samples cheaper"


def more_workers(context: RunContext, feeder: Feeder, rule: Rule, title: str) -> Finding | None:
    """Returns the finding that a loader should have the workers that its cause names.

    Or that its samples should be cheaper, where more workers may cost more than they save: if they
    save too little to be reported, or little and one function takes nearly all of the preparation.
    """
    assert feeder.cause is not None
    setting, gain = feeder.cause.setting, gain_of_cause(context, feeder)
    if setting is None or gain is None:
        return None
    fetch = feeder.loader.fetch
    is_read, asleep = reading_share(fetch) >= _READING_SHARE, asleep_share(fetch)
    is_limited = is_read or asleep >= ASLEEP_SHARE
    if is_limited:  # what one disk, a lock or a rate limit gives to more of them is unknown
        gain = replace(
            gain, training=(1.0, gain.training[1]), run=(1.0, gain.run[1]), is_at_most=True
        )
    wanted = with_workers(feeder, setting)
    workers, change = advised(feeder.loader, wanted)
    result = loader_finding(
        context,
        feeder,
        rule.id,
        title,
        gain,
        advice=workers,
        change=change,
        alters=wanted,
        evidence={MODELLED_WORKERS: setting.workers},
    )
    if is_limited and len(result.cautions) < MOST_CAUTIONS:
        what = f"{percent(reading_share(fetch))} of fetch time is disk reads"
        if not is_read:
            what = f"{percent(asleep)} of fetch time is sleep or I/O"
        limit = "the disk" if is_read else "a server or lock"
        result.cautions.append(f"{what}: more workers help unless {limit} limits them")
    if not is_unsure(result):
        return result
    is_little = passed_over_for(result, rule, context) is not None
    is_little |= gain.likely <= _LITTLE_TIMES and _is_one_function(feeder)
    cheaper = _by_cheaper_samples(context, feeder, rule.id, title, setting) if is_little else None
    return cheaper or result


def _by_cheaper_samples(
    context: RunContext, feeder: Feeder, rule: str, title: str, setting: Setting
) -> Finding | None:
    line = feeder.hot_line()
    if feeder.inputs is None or (line is None and not _is_library_code(context, feeder)):
        return None
    gain = inputs_gain(context, feeder, without_part(feeder.inputs, 1.0))
    if gain is None:
        return None
    call = call_with(feeder.loader, with_workers(feeder, setting))
    command = rerun_words(context, feeder, setting.workers)
    site, built = None, list[str]()
    if line is not None and (line.share if line.line_share is None else line.line_share) >= _MOST:
        site, built = line.site, [f"the loader is built at {feeder.loader.site}"]
    competing = f"workers would compete with training for CPU: {command} measures {call}"
    return loader_finding(
        context,
        feeder,
        rule,
        title,
        gain,
        action=CHEAPER,
        advice=cheaper_samples(line, feeder.loader, site),
        also=[*built, competing],
        site=site,
    )


def _is_one_function(feeder: Feeder) -> bool:
    """Whether nearly all of batch preparation is the computing of one function."""
    line = feeder.hot_line()
    if line is None or line.share < _NEARLY_ALL:
        return False
    return asleep_share(feeder.loader.fetch) <= _HARDLY_ASLEEP


def cheaper_samples(line: HotLine | None, loader: Loader, site: str | None) -> str:
    """Returns the advice to make samples cheaper, with the function to begin at.

    Args:
        site: The finding's, where that is the line's: then it has no other place for its share.
    """
    if line is not None:
        name = "this code" if is_nameless(line) else f"{line.function}()"
        share = "" if site is None else f": {share_of_preparation(line)}{inside(line)}"
        return f"speed up {name}{share}"
    if loader.dataset == _OF_COLUMNS:
        return "use with_format(columns=[...]) to decode only the columns that you need"
    return "compute once and store what stays the same: decoded and resized images, tokens"


def _is_library_code(context: RunContext, feeder: Feeder) -> bool:
    """Whether training waits in its own thread for what a library's dataset computes."""
    if feeder.loader.num_workers or feeder.loader.holds_tensors:
        return False
    waiting = (line for line in context.summary.part_lines if line.part == "data_wait")
    is_seen = any(line.share >= _HALF for line in waiting)
    return is_seen and collate_share(feeder.loader.fetch) < _HALF
