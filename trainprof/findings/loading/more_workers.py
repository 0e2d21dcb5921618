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
from trainprof.analysis.summary.loader import Loader
from trainprof.findings.gain import inputs_gain, passed_over_for
from trainprof.findings.loading.loader_change import (
    advised,
    call_with,
    gain_of_cause,
    loader_finding,
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
from trainprof.findings.wording import places

# Of the fetch time: a disk that takes this share of it may have no more to give.
_READING_SHARE: Final = 0.2
# Of steps: workers that may lose, and most likely give no more than that, come behind a function
# that takes so much of making a batch, and hardly sleeps over it.
_LITTLE_TIMES: Final = 1.3
_NEARLY_ALL: Final = 0.8
_HARDLY_ASLEEP: Final = 0.2
# Likewise: a line that takes so much of it by itself is named ahead of all else.
_MOST: Final = 0.5
_HALF: Final = 0.5
# Hugging Face's, where no line of the user's makes samples: it decodes what is in all columns.
_OF_COLUMNS: Final = "Dataset"


def more_workers(context: RunContext, feeder: Feeder, rule: Rule, title: str) -> Finding | None:
    """Returns the finding that a loader should have the workers that its cause names.

    Where they may as well lose, and do not promise enough to be told, or little where one function
    takes nearly all of making a batch: that samples should be cheaper, at its line.
    """
    assert feeder.cause is not None
    setting, gain = feeder.cause.setting, gain_of_cause(context, feeder)
    if setting is None or gain is None:
        return None
    fetch = feeder.loader.fetch
    if reading_share(fetch) >= _READING_SHARE or asleep_share(fetch) >= ASLEEP_SHARE:
        # Nobody knows what it gives to more of them at once: one disk, a lock, a rate limit.
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
    if feeder.inputs is None or (line is None and not _is_made_by_library(context, feeder)):
        return None
    gain = inputs_gain(context, feeder, without_part(feeder.inputs, 1.0))
    if gain is None:
        return None
    workers = call_with(feeder.loader, with_workers(feeder, setting))
    rerun = rerun_words(context, feeder, setting.workers)
    more = "more workers" if feeder.loader.num_workers else "workers"
    site, built = None, list[str]()
    if line is not None and (line.share if line.line_share is None else line.line_share) >= _MOST:
        site, built = line.site, [f"the loader is built at {feeder.loader.site}"]
    return loader_finding(
        context,
        feeder,
        rule,
        f"{title}; {more} may take as much from training as they give",
        gain,
        advice=cheaper_samples(line, feeder.loader),
        also=[*built, f"whether {workers} helps only a rerun tells: {rerun}"],
        site=site,
    )


def _is_one_function(feeder: Feeder) -> bool:
    """Whether nearly all of making batches is the computing of one function."""
    line = feeder.hot_line()
    if line is None or line.share < _NEARLY_ALL:
        return False
    return asleep_share(feeder.loader.fetch) <= _HARDLY_ASLEEP


def cheaper_samples(line: HotLine | None, loader: Loader) -> str:
    """Returns the advice to make samples cheaper, with the line to begin at."""
    if line is not None:
        return f"cheaper samples: {places(line)} first"
    columns = ""
    if loader.dataset == _OF_COLUMNS:
        columns = "of a datasets.Dataset only the columns that are used (with_format(columns=)); "
    return (
        f"cheaper samples: {columns}what comes out the same each time (decoded and resized "
        "pictures, tokens, encodings) made once and stored"
    )


def _is_made_by_library(context: RunContext, feeder: Feeder) -> bool:
    """Whether training waits in its own thread for what a library's dataset computes."""
    if feeder.loader.num_workers or feeder.loader.holds_tensors:
        return False
    waiting = (line for line in context.summary.part_lines if line.part == "data_wait")
    is_seen = any(line.share >= _HALF for line in waiting)
    return is_seen and collate_share(feeder.loader.fetch) < _HALF
