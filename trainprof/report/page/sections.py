"""Sections of the verbose page on steps, epochs, loaders, calls and the machine.

Steps and epochs are counted from 1 on the page, from 0 in the summary."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from rich.text import Text

from trainprof.analysis.summary.code import (
    Collective,
    Compilation,
    OptimizerUse,
)
from trainprof.analysis.summary.levels import MIN_EXCESS_NS, MIN_RATIO, number_at
from trainprof.analysis.summary.loader import Loader
from trainprof.analysis.summary.run import Epoch, Outlier, Statistics
from trainprof.analysis.summary.run_summary import RunSummary
from trainprof.report.line_page import cost_in_short
from trainprof.report.text.layout import Column, Page
from trainprof.report.text.ledger import label_of
from trainprof.report.text.outside_loop import outside_words
from trainprof.report.text.units import (
    NOT_MEASURED,
    byte_count,
    count,
    counted,
    percent,
    seconds,
    share_of,
)

_EPOCHS_WITHOUT_MEAN: Final = 2

_STEP_SOURCES: Final = {
    "backward": "counted by backward passes: no optimizer step seen",
    "batches": "counted by batches: no optimizer step or backward pass seen",
    "none": "no optimizer step was seen",
}
# What the fields of `not_observed` are called on a page.
_FIELDS: Final = {
    "training": "training",
    "training.step_s": "steps",
    "training.samples": "samples",
    "system": "CPU and memory",
    "system.gpus": "GPUs",
    "devices": "device time",
    "devices.busy_share": "device time",
    "devices.memory": "device memory",
    "found_syncs": "syncs",
}
# Of an epoch; less is not shown.
_SHOWN_FROM_SHARE: Final = 0.05
# What stack samples took in all; less is not worth a word.
_SAMPLED_FROM_S: Final = 1e-3


def outside_section(summary: RunSummary, page: Page) -> list[Text]:
    """Where start-up and exit go, if they are much of the run."""
    parts = outside_words(summary)
    return [line for label, words in parts for line in page.labelled(label, words)]


def steps_section(summary: RunSummary, page: Page) -> list[Text]:
    """Typical and slow steps, warm-up apart, and which outlier was the worst."""
    training = summary.training
    source = _STEP_SOURCES.get(training.step_source, "")
    step = training.step_s
    if step is None:
        return page.labelled("Steps", [why_not_measured(summary, "training.step_s"), source])
    warmup = training.warmup_excluded
    after = f" (after {count(warmup)} of warm-up)" if warmup else ""
    typical = [
        f"median {seconds(step.p50)}",
        f"p95 {seconds(step.p95)} (95 of 100 are faster)",
        f"max {seconds(step.max)}",
        f"{counted(training.steady_steps, 'steady step')}{after}",
        source,
    ]
    return page.labelled("Steps", [*typical, *_outliers(summary, step)])


def epochs_section(summary: RunSummary, page: Page) -> list[Text]:
    """Each epoch, the mean of those after the first, and validation."""
    epochs = [epoch for epoch in summary.epochs if epoch.stage == "training"]
    others = [epoch for epoch in summary.epochs if epoch.stage not in ("training", "evaluation")]
    sentences = [
        _epoch(f"Epoch {epoch.index + 1} took", [epoch], summary.wait_threshold_s)
        for epoch in epochs
    ]
    if len(epochs) > _EPOCHS_WITHOUT_MEAN:
        rest = epochs[1:]
        # One that was cut off says nothing of how long an epoch takes.
        whole = [epoch for epoch in rest if epoch.iterations >= epochs[0].iterations]
        if len(whole) == len(rest):
            last = rest[-1].index + 1
            sentences.append(
                _epoch(f"Mean of {rest[0].index + 1} to {last}:", whole, summary.wait_threshold_s)
            )
        elif whole:
            sentences.append(
                _epoch(
                    f"Mean of {counted(len(whole), 'whole epoch')} after:",
                    whole,
                    summary.wait_threshold_s,
                )
            )
    sentences += [
        _epoch(f"Other iteration {x.index + 1} took", [x], summary.wait_threshold_s) for x in others
    ]
    if sentences and any(epoch.slow_batches for epoch in epochs):
        sentences[-1].append(f"slow = waited over {seconds(summary.wait_threshold_s)}")
    return page.sentences(sentences) + _evaluation(summary, page)


def loaders_section(summary: RunSummary, page: Page) -> list[Text]:
    """One row per loader: where it was built, what for, and how long training waited for it."""
    if not summary.loaders:
        return page.labelled("Loaders", ["no DataLoader was seen"])
    return page.table(_loader_columns(summary.loaders))


def compiled_section(summary: RunSummary, page: Page) -> list[Text]:
    """What torch.compile took, by the line that called it, within other rows of the ledger."""
    return page.labelled_rows("Compiled", [_compilation(x) for x in summary.compilations])


def optimizers_section(summary: RunSummary, page: Page) -> list[Text]:
    """How optimizers are called, and their groups."""
    steps = max(summary.training.steps, 1)
    return page.labelled_rows("Optimizer", [_optimizer(use, steps) for use in summary.optimizers])


def _optimizer(use: OptimizerUse, steps: int) -> list[str]:
    at = f" at {use.site}" if use.site else ""
    return [
        f"{use.name}{at}: {counted(use.tensors, 'parameter')} in {counted(use.groups, 'group')}",
        f"step() called {use.calls / steps:.3g} {'time' if use.calls == steps else 'times'} a step",
        seconds(use.seconds),
    ]


def collectives_section(summary: RunSummary, page: Page) -> list[Text]:
    """Calls of torch.distributed by line."""
    return page.labelled_rows("Ranks", [_collective(call) for call in summary.collectives])


def system_section(summary: RunSummary, page: Page) -> list[Text]:
    """The machine during the run: CPU and memory of the script and its children."""
    system = summary.system
    if system is None:
        return page.labelled("System", [why_not_measured(summary, "system")])
    fragments = [
        f"CPU {_cores(system.cpu)}",
        f"peak memory {byte_count(number_at(system.memory, 'tree_rss_bytes', 'max'))}",
    ]
    return page.labelled("System", fragments)


def closing_section(summary: RunSummary, page: Page) -> list[Text]:
    """What trainprof took, and what it could not see."""
    overhead = summary.overhead
    cost = [
        f"{counted(overhead.events, 'event')} ({byte_count(overhead.bytes)})",
        _own_cost(overhead.per_step_us, overhead.share),
    ]
    if (overhead.looks_s or 0.0) >= _SAMPLED_FROM_S:
        cost.append(f"{seconds(overhead.looks_s)} in all for samples of loaders and steps")
    if overhead.in_c is False:
        cost.append("hooks in Python: the C extension is not used")
    missing = [
        f"{_FIELDS.get(field, field)}: {reason}" for field, reason in summary.not_observed.items()
    ]
    gaps = page.labelled_rows("Not seen", ([gap] for gap in missing))
    return [*page.labelled("trainprof", cost), *gaps]


def why_not_measured(summary: RunSummary, field: str) -> str:
    """Returns "not measured" with the reason on record for the summary's field, if there is one."""
    reason = summary.not_observed.get(field)
    return f"{NOT_MEASURED} ({reason})" if reason else NOT_MEASURED


def outlier_sentence(outlier: Outlier) -> str:
    """Returns which step was slow, how slow, and what in it grew."""
    return (
        f"step {count(outlier.step + 1)} took {seconds(outlier.seconds)}, "
        f"{label_of(outlier.grew)} +{seconds(outlier.grew_s)}"
    )


def _outliers(summary: RunSummary, step: Statistics) -> list[str]:
    outliers = summary.outliers
    if not outliers:
        is_even = step.max < max(MIN_RATIO * step.p50, step.p50 + MIN_EXCESS_NS / 1e9)
        return ["no outliers (2 x median)" if is_even else "too uneven to name outliers"]
    worst = max(outliers, key=lambda outlier: outlier.seconds)
    apart = f" {count(worst.every)} steps apart" if worst.every else ""
    many = f"{counted(summary.outliers_in_all, 'outlier')} (2 x median){apart}"
    return [many, f"worst: {outlier_sentence(worst)}"]


def _epoch(opening: str, epochs: Sequence[Epoch], threshold_s: float) -> list[str]:
    """Returns one epoch, or the mean of several, in the short form.

    Args:
        threshold_s: From which wait on a batch is slow.
    """
    n = len(epochs)
    took_s = sum(epoch.seconds for epoch in epochs) / n
    wait_s = sum(epoch.waited_s for epoch in epochs) / n
    batches = sum(epoch.iterations for epoch in epochs) / n
    slow = sum(epoch.slow_batches for epoch in epochs) / n
    start_s = sum(epoch.loader_start_s for epoch in epochs) / n
    is_late = start_s >= _SHOWN_FROM_SHARE * took_s
    number = f"{_mean_count(slow)} of {_mean_count(batches)} batches"
    waited = f"{number} waited over {seconds(threshold_s)}"
    return [
        f"{opening} {seconds(took_s)}",
        f"waiting for data {seconds(wait_s)} ({percent(share_of(wait_s, took_s))})",
        *([f"starting its loader {seconds(start_s)}"] if is_late else []),
        *([waited] if slow else []),
    ]


def _mean_count(value: float) -> str:
    return count(value) if value == int(value) else f"{value:,.1f}"


def _evaluation(summary: RunSummary, page: Page) -> list[Text]:
    evaluation = summary.evaluation
    if not evaluation.passes and not evaluation.seconds:
        return []
    wait_s = evaluation.waited_s
    fragments = [f"{counted(evaluation.passes, 'time')}, {seconds(evaluation.seconds)}"]
    if evaluation.iterations or wait_s:
        fragments += [
            f"waiting for data {seconds(wait_s)} ({percent(share_of(wait_s, evaluation.seconds))})",
            counted(evaluation.iterations, "batch", "batches"),
        ]
    else:
        fragments.append("without a loader")
    epochs = [epoch for epoch in summary.epochs if epoch.stage == "evaluation"]
    each = (
        _epoch(f"Validation {epoch.index + 1} took", [epoch], summary.wait_threshold_s)
        for epoch in epochs
    )
    return page.labelled("Validation", fragments) + page.sentences(each)


def _loader_columns(loaders: Sequence[Loader]) -> list[Column]:
    waits = [loader.wait_s for loader in loaders]
    counts = ["?" if x.num_workers is None else str(x.num_workers) for x in loaders]
    firsts = [x.first_batch_s for x in loaders]
    return [
        Column("Loader", [loader.site for loader in loaders], is_number=False, gives_way=True),
        Column("used for", [loader.role for loader in loaders], is_number=False),
        Column("workers", counts, dropped=4),
        Column("batches", [count(loader.iterations) for loader in loaders], dropped=2),
        Column("wait mean", [seconds(wait.mean) if wait else NOT_MEASURED for wait in waits]),
        Column("p95", [seconds(wait.p95) if wait else "" for wait in waits], dropped=1),
        Column("max", [seconds(wait.max) if wait else "" for wait in waits], dropped=5),
        Column("1st mean", [seconds(x.mean) if x else NOT_MEASURED for x in firsts], dropped=3),
    ]


def _compilation(compilation: Compilation) -> list[str]:
    fragments = [
        f"{compilation.site} {counted(compilation.count, 'time')}",
        seconds(compilation.seconds),
    ]
    if compilation.again:
        fragments.append(
            f"{count(compilation.again)} of them again ({seconds(compilation.again_s)})"
        )
    return fragments


def _collective(call: Collective) -> list[str]:
    called = f"{call.site} {call.function}: {counted(call.count, 'call')}"
    return [called, f"{seconds(call.seconds)}, for other ranks too"]


def _cores(cpu: dict[str, object]) -> str:
    busy = number_at(cpu, "tree_percent", "mean")
    usable = number_at(cpu, "cores_usable")
    if busy is None:
        return NOT_MEASURED
    of = "" if usable is None else f" of {usable:.3g}"
    return f"{busy / 100:.1f}{of} cores busy on average"


def _own_cost(per_step_us: float | None, share: float | None) -> str:
    if per_step_us is None and share is None:
        return f"cost a step {NOT_MEASURED}"
    cost = NOT_MEASURED if per_step_us is None else f"about {seconds(per_step_us * 1e-6)}"
    return f"{cost} a step{'' if share is None else f' ({percent(share)})'}"


def lines_section(summary: RunSummary, page: Page) -> list[Text]:
    """What timing lines took."""
    return [] if summary.lines is None else page.labelled("Lines", cost_in_short(summary.lines))
