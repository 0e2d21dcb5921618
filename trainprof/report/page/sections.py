"""The short page's sections below the ledger; each returns its lines, or none to save room.

Steps and epochs are counted from 1 on the page, from 0 in the summary."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Sequence
from typing import Final

from rich.text import Text

from trainprof.analysis.summary.code import (
    Collective,
    Compilation,
    HottestLine,
    OptimizerUse,
    UnsharedData,
)
from trainprof.analysis.summary.levels import MIN_EXCESS_NS, MIN_RATIO, MODERATE_SHARE, number_at
from trainprof.analysis.summary.loader import Loader
from trainprof.analysis.summary.run import COSTLY_RECORDING, Epoch, Outlier, Statistics
from trainprof.analysis.summary.run_summary import RunSummary
from trainprof.report.line_page import cost_in_short
from trainprof.report.text.layout import LABEL_CELLS, Column, Page
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

_EPOCHS_SHOWN: Final = 2
# The longest of them over the shortest: up to that one line tells of all.
_EVEN_EPOCHS: Final = 1.25
_LOADERS_SHOWN: Final = 3

_STEP_SOURCES: Final = {
    "backward": "counted by backward passes, no optimizer step was seen",
    "batches": "counted by batches, neither optimizer steps nor backward passes were seen",
    "none": "no optimizer step was seen",
}
# Parts may be as long as each other.
_SHARE: Final = (
    "with sampler=DistributedSampler(dataset) they would share them out, unless each has a part of "
    "its own as its dataset, or they compute one model together"
)
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
# Not worth a line of a short page.
_HARDLY_MISSED: Final = ("training.samples",)
# Of the run, an epoch or a step: less of it stands on the verbose page alone.
_SHOWN_FROM_SHARE: Final = 0.05
# Of a training step: from here on updates take longer by their groups.
_MANY_GROUPS: Final = 10
# What stack samples took in all; less is not worth a word.
_SAMPLED_FROM_S: Final = 1e-3
_SHOWN_LINES: Final = 3
# Of a step: a narrower interval is shown as its middle.
_NARROW: Final = 0.05


def outside_section(summary: RunSummary, page: Page) -> list[Text]:
    """Where start-up and shutdown go, if they are much of the run."""
    said = outside_words(summary, is_brief=page.is_brief)
    return [line for label, words in said for line in page.labelled(label, words)]


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
    return page.labelled("Steps", [*typical, *_outliers(summary, step, page)])


def epochs_section(summary: RunSummary, page: Page) -> list[Text]:
    """The first epochs and the mean of the others, evaluation passes on a line of their own."""
    at_most = 1 if page.is_brief else _EPOCHS_SHOWN
    epochs = [epoch for epoch in summary.epochs if epoch.stage == "training"]
    is_one_line = page.is_brief or not _is_each_shown(epochs, summary)
    is_one_line = is_one_line and _are_even(epochs) and not page.verbose
    others = [epoch for epoch in summary.epochs if epoch.stage not in ("training", "evaluation")]
    has_mean = len(epochs) > _EPOCHS_SHOWN and not is_one_line
    shown = epochs[:at_most] if has_mean and not page.verbose else epochs
    sentences = [_epoch(f"Epoch {epoch.index + 1} took", [epoch]) for epoch in shown]
    if is_one_line:
        sentences = [_epoch(f"Mean of {len(epochs)} epochs:", epochs)]
    if has_mean:
        rest = epochs[1 if page.verbose else len(shown) :]
        first, last = rest[0].index + 1, rest[-1].index + 1
        # One that was cut off says nothing of how long an epoch takes.
        whole = [epoch for epoch in rest if epoch.iterations >= epochs[0].iterations]
        if len(whole) == len(rest):
            sentences.append(_epoch(f"Mean of {first} to {last}:", whole))
        elif whole:
            sentences.append(_epoch(f"Mean of {counted(len(whole), 'whole one')} after:", whole))
    if page.verbose:
        sentences += [_epoch(f"Other pass {epoch.index + 1} took", [epoch]) for epoch in others]
    if sentences and any(epoch.slow_batches for epoch in epochs):
        sentences[-1].append(f"slow = waited over {seconds(summary.wait_threshold_s)}")
    return page.sentences(sentences) + _evaluation(summary, page)


def loaders_section(summary: RunSummary, page: Page) -> list[Text]:
    """One row per loader: where it was built, what for, and how long training waited for it."""
    if not summary.loaders:
        return page.labelled("Loaders", ["no DataLoader was seen"])
    shown = summary.loaders if page.verbose else summary.loaders[:_LOADERS_SHOWN]
    lines = page.table(_loader_columns(shown))
    hidden = len(summary.loaders) - len(shown)
    return lines + (page.paragraph(f"and {hidden} more", indent=2) if hidden else [])


def compiled_section(summary: RunSummary, page: Page) -> list[Text]:
    """What torch.compile took, by the line that called it, within other rows of the ledger."""
    if not _is_much(summary.compilations, summary, page):
        return []
    return by_site("Compiled", [_compilation(x, page) for x in summary.compilations], page)


def optimizers_section(summary: RunSummary, page: Page) -> list[Text]:
    """How optimizers are called, and their groups; on the short page where these explain time."""
    steps = max(summary.training.steps, 1)
    many = [use for use in summary.optimizers if use.groups * use.calls >= _MANY_GROUPS * steps]
    shown = summary.optimizers if page.verbose else many
    if not _is_much(shown, summary, page):
        return []
    return by_site("Optimizer", [_optimizer(use, steps, page) for use in shown], page)


def _optimizer(use: OptimizerUse, steps: int, page: Page) -> list[str]:
    at = f" at {page.site(use.site)}" if use.site else ""
    return [
        f"{use.name}{at}: {counted(use.tensors, 'parameter')} in {counted(use.groups, 'group')}",
        f"step() called {use.calls / steps:.3g} {'time' if use.calls == steps else 'times'} a step",
        seconds(use.seconds),
    ]


def collectives_section(summary: RunSummary, page: Page) -> list[Text]:
    """Calls of torch.distributed by line; on the short page only where they are much."""
    if not _is_much(summary.collectives, summary, page):
        return []
    return by_site("Ranks", [_collective(call, page) for call in summary.collectives], page)


def _is_much(
    calls: Sequence[Compilation] | Sequence[Collective] | Sequence[OptimizerUse],
    summary: RunSummary,
    page: Page,
) -> bool:
    share = sum(call.seconds for call in calls) / max(summary.run.wall_s, 1e-9)
    return bool(calls) and (share >= _SHOWN_FROM_SHARE or page.verbose)


def unshared_section(summary: RunSummary, page: Page) -> list[Text]:
    """Loaders whose data the ranks do not share out among them."""
    return [
        line
        for loader in summary.unshared
        for line in page.labelled("Data", [unshared(loader), _SHARE])
    ]


def unshared(loader: UnsharedData) -> str:
    """Says that no rank leaves any of a loader's data to another."""
    return (
        f"each of the {loader.ranks} ranks draws from all {counted(loader.samples, 'sample')} of "
        f"{loader.site}"
    )


def system_section(summary: RunSummary, page: Page) -> list[Text]:
    """The machine during the run: CPU and memory of the script and its children."""
    if page.is_brief:
        return []
    system = summary.system
    if system is None:
        return page.labelled("System", [why_not_measured(summary, "system")])
    fragments = [
        f"CPU {_cores(system.cpu)}",
        f"peak memory {byte_count(number_at(system.memory, 'tree_rss_bytes', 'max'))}",
    ]
    return page.labelled("System", fragments)


def shared_section(summary: RunSummary, page: Page) -> list[Text]:
    """That other programs took much of the CPU, or another thread the interpreter."""
    shared = (
        ("Cores", bound_to(summary)),
        ("Shared", taken_by_others(summary)),
        ("Threads", worked_beside(summary)),
    )
    return [line for label, words in shared if words for line in page.labelled(label, [words])]


def worked_beside(summary: RunSummary) -> str:
    """Says that another thread of the process was often met at work; "" where none was."""
    share = summary.beside_share
    if share is None or share < MODERATE_SHARE:
        return ""
    return (
        f"another thread of the script's was at work in {percent(share)} of the looks at training: "
        "where it runs Python code, training waits for it"
    )


def bound_to(summary: RunSummary) -> str:
    """Says that the script may use fewer cores than it was started on; "" where it may use all."""
    cores = "" if summary.system is None else summary.system.bound_to
    if not cores:
        return ""
    return (
        f"the script is bound to {cores}, and so are its workers: it, an import or its launcher "
        "set the CPU affinity (os.sched_setaffinity)"
    )


def taken_by_others(summary: RunSummary) -> str:
    """Says that nothing is what it would be on a machine of one's own; "" where it is."""
    taken = summary.taken_by_others
    return f"{taken}: alone, steps would be shorter and more even" if taken else ""


def closing_section(summary: RunSummary, page: Page) -> list[Text]:
    """What trainprof took, and what it could not see."""
    if page.is_brief:
        return _not_seen(summary, page)
    overhead = summary.overhead
    cost = [_own_cost(overhead.per_step_us, overhead.share)]
    if page.verbose:
        cost.insert(0, f"{counted(overhead.events, 'event')} ({byte_count(overhead.bytes)})")
    if (overhead.looks_s or 0.0) >= _SAMPLED_FROM_S:
        of = " at loaders and some steps" if page.verbose else ""
        cost.append(f"{seconds(overhead.looks_s)} in all for looks{of}")
    return [*page.labelled("trainprof", cost), *_not_seen(summary, page)]


def price_of_measuring(summary: RunSummary) -> str | None:
    """Returns what a trial, --cuda-sync or very many events did to the run, None of little."""
    overhead, free_from = summary.overhead, summary.training.free_from_step
    prices = []
    if free_from is not None:
        prices.append(
            f"A trial of trainprof tune: from step {count(free_from + 1)} on its batches cost "
            "nothing, and what is told of loading is of the steps before."
        )
    if overhead.synchronized_s is not None and overhead.synchronizations is not None:
        share = share_of(overhead.synchronized_s, summary.run.wall_s)
        run_share = "" if share is None else f" ({percent(share)} of the run)"
        prices.append(
            f"The device was waited for {counted(overhead.synchronizations, 'time')}, "
            f"{seconds(overhead.synchronized_s)} in all{run_share}: at most so much was added."
        )
    if overhead.share is not None and overhead.share >= COSTLY_RECORDING:
        took = f"Recording took about {percent(overhead.share)} of a step"
        prices.append(f"{took}: without trainprof, training is faster.")
    return " ".join(prices) or None


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


def _outliers(summary: RunSummary, step: Statistics, page: Page) -> list[str]:
    outliers = summary.outliers
    if not outliers:
        is_even = step.max < max(MIN_RATIO * step.p50, step.p50 + MIN_EXCESS_NS / 1e9)
        return ["no outliers (2 x median)" if is_even else "too uneven to name outliers"]
    worst = max(outliers, key=lambda outlier: outlier.seconds)
    if len(outliers) == 1:
        which = "" if page.is_brief else f": {outlier_sentence(worst)}"
        return [f"1 outlier (2 x median){which}"]
    apart = f" {count(worst.every)} steps apart" if worst.every else ""
    many = f"{counted(summary.outliers_in_all, 'outlier')} (2 x median){apart}"
    return [many] if page.is_brief else [many, f"worst: {outlier_sentence(worst)}"]


def _is_each_shown(epochs: Sequence[Epoch], summary: RunSummary) -> bool:
    """Whether epochs may matter, each by itself: where loading does."""
    is_data_bound = summary.verdict.bottleneck == "data" or summary.verdict.level == "moderately"
    return is_data_bound or any(epoch.slow_batches for epoch in epochs)


def _are_even(epochs: Sequence[Epoch]) -> bool:
    """Whether the mean of several epochs tells how long each of them took."""
    took = [epoch.seconds for epoch in epochs]
    is_even = len(took) > 1 and max(took) <= _EVEN_EPOCHS * min(took)
    return is_even and len({epoch.iterations for epoch in epochs}) == 1


def _epoch(opening: str, epochs: Sequence[Epoch]) -> list[str]:
    """Returns one epoch, or the mean of several, in the short form."""
    n = len(epochs)
    took_s = sum(epoch.seconds for epoch in epochs) / n
    wait_s = sum(epoch.waited_s for epoch in epochs) / n
    batches = sum(epoch.iterations for epoch in epochs) / n
    slow = sum(epoch.slow_batches for epoch in epochs) / n
    start_s = sum(epoch.loader_start_s for epoch in epochs) / n
    is_late = start_s >= _SHOWN_FROM_SHARE * took_s
    return [
        f"{opening} {seconds(took_s)}",
        f"waiting for data {seconds(wait_s)} ({percent(share_of(wait_s, took_s))})",
        *([f"starting its loader {seconds(start_s)}"] if is_late else []),
        f"{_mean_count(slow)} of {_mean_count(batches)} batches slow",
    ]


def _mean_count(value: float) -> str:
    return count(value) if value == int(value) else f"{value:,.1f}"


def _evaluation(summary: RunSummary, page: Page) -> list[Text]:
    evaluation = summary.evaluation
    if not evaluation.passes and not evaluation.seconds:
        return []
    wait_s = evaluation.waited_s
    passes = counted(evaluation.passes, "pass", "passes")
    fragments = [f"{passes} took {seconds(evaluation.seconds)}"]
    if evaluation.iterations or wait_s:
        fragments += [
            f"waiting for data {seconds(wait_s)} ({percent(share_of(wait_s, evaluation.seconds))})",
            counted(evaluation.iterations, "batch", "batches"),
        ]
    else:  # its batches are the script's own
        fragments.append("without a loader")
    if page.verbose:
        epochs = [epoch for epoch in summary.epochs if epoch.stage == "evaluation"]
        each = (_epoch(f"Evaluation {epoch.index + 1} took", [epoch]) for epoch in epochs)
        return page.labelled("Evaluation", fragments) + page.sentences(each)
    return page.labelled("Evaluation", fragments)


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


def _compilation(compilation: Compilation, page: Page) -> list[str]:
    fragments = [
        f"{page.site(compilation.site)} {counted(compilation.count, 'time')}",
        seconds(compilation.seconds),
    ]
    if compilation.again:
        fragments.append(
            f"{count(compilation.again)} of them again ({seconds(compilation.again_s)})"
        )
    return fragments


def _collective(call: Collective, page: Page) -> list[str]:
    called = f"{page.site(call.site)} {call.function}: {counted(call.count, 'call')}"
    return [called, f"{seconds(call.seconds)}, for other ranks too"]


def by_site(label: str, by_line: list[list[str]], page: Page) -> list[Text]:
    """Returns what is known of each line after a label; on a short page of the first alone."""
    if page.verbose:
        return page.labelled_rows(label, by_line or [["none seen"]])
    if page.is_brief or not by_line:
        return []
    hidden = len(by_line) - 1
    return page.labelled(label, [*by_line[0], f"{counted(hidden, 'more line')}" if hidden else ""])


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


def _not_seen(summary: RunSummary, page: Page) -> list[Text]:
    missing = [
        f"{_FIELDS.get(field, field)}: {reason}"
        for field, reason in summary.not_observed.items()
        if page.verbose or field not in _HARDLY_MISSED
    ]
    gaps = [*summary.faults, *missing]
    if not gaps:
        return []
    if page.verbose:
        return page.labelled_rows("Not seen", ([gap] for gap in gaps))
    hidden = f"{len(gaps) - 1} more with --verbose" if len(gaps) > 1 else ""
    first = page.shortened(gaps[0], page.width - LABEL_CELLS - len(hidden) - len(", "))
    return page.labelled("Not seen", [first, hidden])


def hot_lines_section(summary: RunSummary, page: Page) -> list[Text]:
    """Returns the hottest lines in a row, on a verbose page a table of all."""
    if page.verbose:
        return _table(summary.hot_lines, page)
    sure = [line for line in summary.hot_lines if line.share[0] >= _SHOWN_FROM_SHARE]
    shown = sure[:_SHOWN_LINES]
    if not shown:
        return []
    times = Counter(line.site for line in shown)
    words = (
        f"{_named(line, page, times[line.site] > 1)}{_others_of(line, summary.hot_lines)}"
        for line in shown
    )
    return page.labelled("Hot lines", list(words))


def _named(line: HottestLine, page: Page, names_part: bool) -> str:
    """Returns the line with its share, and the part where the line stands in several."""
    who = " of each worker" if line.thread == "worker" else ""
    part = f" ({line.part.replace('_', ' ')})" if names_part else ""
    return f"{page.site(line.site)} {line.function}{part} {_share_words(line)}{who}"


def _others_of(line: HottestLine, lines: Sequence[HottestLine]) -> str:
    """Returns the other lines of its function that may have some of its share, which is wide."""
    if line.share[1] - line.share[0] <= _NARROW:
        return ""
    file = line.site.rpartition(":")[0]
    others = [
        other.site.rpartition(":")[2]
        for other in lines
        if other.site.rpartition(":")[0] == file
        and (other.function, other.part, other.thread) == (line.function, line.part, line.thread)
        and other.share[0] < _SHOWN_FROM_SHARE <= other.share[1]
        and other.samples >= _SHOWN_FROM_SHARE * line.samples
    ]
    many = "s" if len(others) > 1 else ""
    return f" (line{many} {' and '.join(others)} too)" if others else ""


def _share_words(line: HottestLine) -> str:
    """Returns "31 %", or "20 to 45 %" where that is not known well."""
    low, high = line.share
    if high - low > _NARROW:
        return f"{round(100 * low)} to {percent(high)}"
    return percent(line.middle)


def _table(lines: list[HottestLine], page: Page) -> list[Text]:
    if not lines:
        return []
    columns = [
        Column("Hot line", [line.site for line in lines], is_number=False, gives_way=True),
        Column("function", [line.function for line in lines], is_number=False, dropped=2),
        Column("part", [line.part for line in lines], is_number=False),
        Column("thread", [line.thread for line in lines], is_number=False, dropped=1),
        Column("of a step", [_share_words(line) for line in lines]),
        Column("samples", [str(line.samples) for line in lines], dropped=3),
    ]
    return [Text(), *page.table(columns)]


def lines_section(summary: RunSummary, page: Page) -> list[Text]:
    """What timing lines took, and the command that shows them."""
    if summary.lines is None:
        return []
    shown = page.labelled("Lines", cost_in_short(summary.lines))
    if summary.run.directory is None:
        return shown
    command = f"trainprof lines {shlex.quote(summary.run.directory)}"
    return [*shown, *page.command("", "see them:", command)]
