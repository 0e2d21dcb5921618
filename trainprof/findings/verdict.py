"""One headline: the largest share of training, or why a device was idle, as a measured fact."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Final

import numpy as np

from trainprof.analysis.run.evidence import DeviceEvidence, Evidence
from trainprof.analysis.stacks.python_in_model import TOLD_FROM_SHARE
from trainprof.analysis.statistics.step_noise import pace_half_width, share_half_width
from trainprof.analysis.summary.code import OutsideLoop
from trainprof.analysis.summary.device import AFTER_WARMUP
from trainprof.analysis.summary.levels import (
    HIGH_SHARE,
    MANY_STEPS,
    MODERATE_SHARE,
    pair,
    percent,
    percent_apart,
)
from trainprof.analysis.summary.loader import Loader, cost_s
from trainprof.analysis.summary.run import COMPILE_KEY, COMPUTE_KEYS, Verdict
from trainprof.analysis.timeline.ledger import ELSEWHERE, LOADER_KEYS
from trainprof.analysis.timeline.steady_state import MIN_STEADY_STEPS
from trainprof.analysis.timeline.step_table import StepTable
from trainprof.findings.wording import number_of

# Start-up is named only in runs that are meant to be long, and when it is most of them.
STARTUP_SHARE: Final = 0.5
STARTUP_MIN_WALL_S: Final = 60.0

# A steady step's share may differ so much from that of all training to stand beside it.
_SAME_SHARE: Final = 0.15
# Of the waiting for all loaders: one that has so much of it is the one that is waited for.
_ALONE_SHARE: Final = 0.9
_STARTS: Final = tuple(key for key in LOADER_KEYS if key != "data_wait")
_HOST_KEYS: Final = ("other", "gc")
_HIDDEN_BY_A_DEVICE: Final = ("data", "host")
# Host time here is mostly the device at work: never a culprit until device time is known.
_DEVICE_KEYS: Final = ("transfer", "sync", "device_wait")
# From here on faster loading or less Python could gain a tenth at most.
DEVICE_BOUND_SHARE: Final = 0.9
# Of the training phase: from here on computing is most of it.
_MOST: Final = 0.5
_COMPUTE: Final = "compute"
# A bottleneck of the host's, with words of its own.
_COMPILING: Final = "compiling"
_CAUSE_OF: Final = {
    "data": "loader_s",
    "transfer": "copy_s",
    "sync": "sync_s",
    "host": "host_s",
    "checkpoint": "checkpoint_s",
    _COMPILING: "compile_s",
}
_NEXT_WORDS: Final = {
    "data": "waiting for data",
    "transfer": "copying",
    "sync": "waiting for values",
    "host": "Python between the parts of a step",
    "checkpoint": "checkpoints",
    "evaluation": "evaluation",
    _COMPILING: "torch.compile, which compiles again,",
}
# Of the mean of few steps, however uncertain that is.
_LEAST_PACE: Final = 0.1
_LONGER: Final = "run it longer, e.g. --max-steps 30"
_LAUNCHING: Final = "small pieces of work, given out too slowly"


def verdict(evidence: Evidence) -> Verdict:
    """Names the largest part of training that is not computing, if it is large enough.

    Where computing is most of the time and nothing else reaches HIGH_SHARE, it is `compute`, and
    the level tells how far the loop is bound by its data: not or moderately. Of few steps it is
    told where their intervals exclude any other.
    """
    if evidence.has_timed_lines:
        return Verdict(
            "unknown",
            "NO VERDICT: line timing slows the script, some of its parts more than others",
        )
    if evidence.was_synchronized:
        return Verdict(
            "unknown",
            "NO VERDICT: --cuda-sync measures each phase by itself, and nothing overlaps",
        )
    if evidence.steps.steps == 0 and evidence.training.get("evaluation", 0) > 0:
        site = evidence.evaluation_site
        text = "NO TRAINING STEPS: no backward and no parameter update was seen, only inference"
        return Verdict("unknown", f"{text} over {site}" if site else text, None, None, site)
    if evidence.steps.steady_steps < MIN_STEADY_STEPS:
        counted = number_of(evidence.steps.steady_steps, "steady step")
        longer = f": {_LONGER}" if evidence.steps.steps else ""
        return Verdict(
            "unknown",
            f"NOT ENOUGH DATA for a verdict: {counted} seen, {MIN_STEADY_STEPS} needed{longer}",
        )
    if evidence.wall_s >= STARTUP_MIN_WALL_S:
        share = evidence.startup_s / evidence.wall_s
        if share > STARTUP_SHARE:
            place, site = _first_of_startup(evidence.startup)
            return Verdict(
                "startup",
                f"START-UP: {evidence.startup_s:.1f} of {evidence.wall_s:.1f} s passed before the "
                f"first batch, {percent(share)} of the run{place}",
                "highly",
                share,
                site,
            )
    few = evidence.few_steps
    return _largest(evidence) if few is None else _of_few(evidence, few)


def _of_few(evidence: Evidence, steps: StepTable) -> Verdict:
    """Names the largest part where few steps exclude any other verdict."""
    within = [_largest(x) for x in _within_intervals(evidence, steps)]
    # Starts are much of a short run: its steady steps show how far it is bound by its data.
    largest = _largest(evidence, within[0].level if within else None)
    same = [
        x.bottleneck == largest.bottleneck
        and (x.level == largest.level or x.bottleneck == _COMPUTE)
        for x in within
    ]
    if all(same):
        return largest
    counted = number_of(evidence.steps.steady_steps, "steady step")
    why = f"which differ too much, {MANY_STEPS} are enough"
    if not same[0]:
        why = "and the first ones and starts of epochs take too much of training"
    return Verdict("unknown", f"NOT ENOUGH DATA for a verdict: {counted} seen, {why}: {_LONGER}")


def _within_intervals(evidence: Evidence, steps: StepTable) -> Iterator[Evidence]:
    """Yields training as its steady steps are, then what it may be by their 95 % intervals."""
    steady, cycle, device = steps.steady.mask, steps.cycle, evidence.device
    wall = steps.wall_ns[steady].astype(np.float64)
    if not wall.any():
        return
    pace = pace_half_width(wall, cycle=cycle)
    if device is not None:
        yield evidence
        for cause, share in device.idle.items():
            for moved in (max(share - pace, 0.0), share + pace):
                idle = {**device.idle, cause: moved}
                yield replace(evidence, device=replace(device, idle=idle))
        return
    steps_s = {key: float(ns[steady].mean()) * len(ns) / 1e9 for key, ns in steps.per_step.items()}
    # What lies between steps and epochs is known as it is, but for what begins the run.
    later = steps.border & ~steady & (np.arange(len(steps)) >= steps.steady.warmup)
    between_s = {
        key: float(steps.per_step[key][later].sum()) / 1e9 for key in _STARTS if key in steps_s
    } | {
        key: max(evidence.training.get(key, 0.0) - np.sum(steps.per_step.get(key, 0)) / 1e9, 0.0)
        for key in ("evaluation", "checkpoint")
    }
    for times in (1.0, max(1 - pace, _LEAST_PACE), 1 + pace):
        yield _with_steps(evidence, {key: times * s for key, s in steps_s.items()}, between_s)
    for keys in _parts(evidence).values():
        part = np.zeros_like(wall)
        for key in steps_s.keys() & keys:
            part += steps.per_step[key][steady]
        share, reach = part.mean() / wall.mean(), share_half_width(part, wall, cycle=cycle)
        for moved in (max(share - reach, 0.0), min(share + reach, 1.0)) if 0 < share < 1 else ():
            times_of = {True: moved / share, False: (1 - moved) / (1 - share)}
            changed = {key: s * times_of[key in keys] for key, s in steps_s.items()}
            yield _with_steps(evidence, changed, between_s)


def _with_steps(
    evidence: Evidence, steps_s: Mapping[str, float], between_s: Mapping[str, float]
) -> Evidence:
    training = {
        key: steps_s.get(key, 0.0) + between_s.get(key, 0.0) for key in {**steps_s, **between_s}
    }
    return replace(evidence, training=training, training_s=sum(training.values()))


def _largest(evidence: Evidence, level: str | None = None) -> Verdict:
    """Returns it with the `level` by which it is bound by data, where computing is the largest."""
    device = evidence.device
    return _of_host(evidence, level) if device is None else _of_device(evidence, device)


def _first_of_startup(startup: OutsideLoop | None) -> tuple[str, str | None]:
    """Returns what start-up mostly goes to, in words, and its line."""
    if startup is None:
        return "", None
    line = next((line for line in startup.lines if line.site is not None), None)
    package = next(iter(startup.imports), None)
    if line is not None and (package is None or line.seconds >= package.seconds):
        return f": {line.seconds:.1f} s at {line.site}", line.site
    if package is not None:
        return f": {package.seconds:.1f} s importing {package.package}", package.site
    return "", None


def _of_device(evidence: Evidence, device: DeviceEvidence) -> Verdict:
    return device_verdict(
        device,
        training_s=evidence.training_s,
        evaluation_s=evidence.training.get("evaluation", 0.0),
        sites={
            "data": _feeding_site(evidence),
            "transfer": evidence.transfer_site,
            "sync": evidence.sync_site,
            "checkpoint": evidence.checkpoints.site,
            "evaluation": evidence.evaluation_call or evidence.evaluation_site,
        },
    )


def _of_host(evidence: Evidence, level: str | None = None) -> Verdict:
    shares = _shares(evidence)
    compute = shares.pop("compute")
    name = max(shares, key=lambda key: shares[key])
    share = shares[name]
    if share >= HIGH_SHARE or (share >= MODERATE_SHARE and compute < 0.5):
        return _named(evidence, name, share, _level(evidence, name, share))
    if compute >= 0.5:
        level = level or ("moderately" if shares["data"] >= MODERATE_SHARE else "not")
        headline, share = _compute_headline(evidence, compute, level, name, share)
        return Verdict(_COMPUTE, headline, level, share)
    return Verdict(
        "none", f"NOTHING STANDS OUT: no part takes {percent(MODERATE_SHARE)} of training"
    )


def _level(evidence: Evidence, name: str, share: float) -> str:
    """On an accelerator that tells nothing the host's waits may have cost nothing."""
    is_sure = not (evidence.has_device and name in _HIDDEN_BY_A_DEVICE)
    return "highly" if share >= HIGH_SHARE and is_sure else "moderately"


def _parts(evidence: Evidence) -> dict[str, tuple[str, ...]]:
    """Returns the keys of the ledger by the bottleneck that they are."""
    return {
        "data": LOADER_KEYS,
        "evaluation": ("evaluation",),
        "checkpoint": ("checkpoint",),
        "host": _HOST_KEYS,
        "compute": (*COMPUTE_KEYS, COMPILE_KEY, *(_DEVICE_KEYS if evidence.has_device else ())),
    }


def _shares(evidence: Evidence) -> dict[str, float]:
    total = evidence.training_s or 1.0
    shares = {
        name: sum(evidence.training.get(key, 0.0) for key in keys) / total
        for name, keys in _parts(evidence).items()
    }
    shares["communication"] = evidence.communication_s / total
    shares["host"] = max(shares["host"] - shares["communication"], 0.0)
    return shares


def _named(evidence: Evidence, name: str, share: float, level: str) -> Verdict:
    describe = {
        "data": _data_headline,
        "evaluation": _evaluation_headline,
        "checkpoint": _checkpoint_headline,
        "host": _host_headline,
        "communication": _communication_headline,
    }[name]
    headline, site = describe(evidence, share)
    if evidence.has_device and name in _HIDDEN_BY_A_DEVICE:
        headline += "; whether the device worked meanwhile is not known"
    return Verdict(name, headline, level, share, site)


def _data_headline(evidence: Evidence, share: float) -> tuple[str, str | None]:
    site = _feeding_site(evidence)
    part = _share_of_site(evidence, site)
    is_alone = part >= _ALONE_SHARE
    where = (site or "its data") if is_alone else "its loaders"
    prefix = "" if _level(evidence, "data", share) == "highly" else "MODERATELY "
    text = f"{prefix}DATA-BOUND: the loop waits for {where} in {percent(share)} of training time"
    text += _in_figures(evidence, LOADER_KEYS, share)
    return text if is_alone else f"{text}, {percent(part)} of it for {site}", site


def _share_of_site(evidence: Evidence, site: str | None) -> float:
    """Returns which share of the waiting for loaders is for those of a line.

    A loader inside another one's dataset counts in both, in the ledger but once.
    """
    costs = _costs_by_site(evidence)
    all_s = min(sum(costs.values()), sum(evidence.training.get(key, 0.0) for key in LOADER_KEYS))
    site_s = 0.0 if site is None else costs.get(site, 0.0)
    return min(site_s / all_s, 1.0) if all_s > 0 else 1.0


def _feeding_site(evidence: Evidence) -> str | None:
    """The line whose loaders cost training most: waits, and starts and ends of passes."""
    costs = _costs_by_site(evidence)
    return max(costs, key=lambda site: costs[site], default=None)


def _costs_by_site(evidence: Evidence) -> dict[str, float]:
    """Returns what training spends on the loaders of each line, as a mean over ranks, s."""
    feeding, ranks = _feeding(evidence), max(evidence.ranks, 1)
    # Workers may be ended, too, as the script is: that is no part of training.
    ended_s = sum(loader.end_s for loader in feeding) / ranks
    ends_share = (
        min(evidence.training.get("loader_end", 0.0) / ended_s, 1.0) if ended_s > 0 else 0.0
    )
    costs: dict[str, float] = {}
    for loader in feeding:
        spent_s = cost_s(loader) - loader.evaluation_wait_s + ends_share * loader.end_s
        costs[loader.site] = costs.get(loader.site, 0.0) + spent_s / ranks
    return costs


def _feeding(evidence: Evidence) -> list[Loader]:
    return [x for x in evidence.loaders if x.role == "training" and x.thread == "training"]


def _evaluation_headline(evidence: Evidence, share: float) -> tuple[str, str | None]:
    call, site = evidence.evaluation_call, evidence.evaluation_site
    seconds = evidence.training.get("evaluation", 0.0)
    where = f", called at {call}" if call else f" over {site}" if site else ""
    text = f"EVALUATION: it takes {percent(share)} of training time{where}, {seconds:.1f} s"
    return text, call or site


def _checkpoint_headline(evidence: Evidence, share: float) -> tuple[str, str | None]:
    site = evidence.checkpoints.site
    seconds = evidence.training.get("checkpoint", 0.0)
    at, calls = f" at {site}" if site else "", evidence.checkpoints
    saves = [calls.called] if calls.saves or not calls.loads else []
    called = " and ".join((*saves, "torch.load") if calls.loads else saves)
    takes = f"{'take' if ' and ' in called else 'takes'} {percent(share)} of training time"
    return f"CHECKPOINTS: {called}{at} {takes}, {seconds:.1f} s", site


def _host_headline(evidence: Evidence, share: float) -> tuple[str, str | None]:
    collecting = evidence.training.get("gc", 0.0)
    is_collecting = collecting > evidence.training.get("other", 0.0)
    between = "between loading, forward, backward and optimizer"
    text = f"PYTHON-BOUND: Python code {between} takes {percent(share)} of training time"
    if evidence.waits_at is not None:
        text = (
            f"WAIT-BOUND: {between} the loop waits for another thread or process at "
            f"{evidence.waits_at}: {percent(share)} of training time"
        )
    if is_collecting:
        text = (
            "PYTHON-BOUND: Python's garbage collection, and code between the parts of a step, take "
            f"{percent(share)} of training time"
        )
    if evidence.collectives:
        text += f", {pair(share * evidence.training_s, evidence.training_s)}"
    else:
        text += _in_figures(evidence, _HOST_KEYS, share)
    if evidence.other_place and evidence.other_place != ELSEWHERE and not is_collecting:
        text += f", most of it {evidence.other_place}"
    ahead = [x for x in evidence.loaders if x.role == "training" and x.thread != "training"]
    if ahead:
        text += f"; {ahead[0].site} is read on another thread: waiting for that thread is in it"
    return text, None


def _communication_headline(evidence: Evidence, share: float) -> tuple[str, str | None]:
    worst = evidence.collectives[0]
    text = (
        f"COMMUNICATION: calls of torch.distributed take {percent(share)} of training time, "
        f"{pair(evidence.communication_s, evidence.training_s)}, most of it {worst.function} at "
        f"{worst.site}; waiting for slower ranks is in it"
    )
    return text, worst.site


def _in_figures(evidence: Evidence, keys: tuple[str, ...], share: float) -> str:
    """Returns what a share of training is in time: of a steady step, or else where that is far off.

    Args:
        keys: Of the ledger, that it is the share of.
    """
    steady, step = evidence.steps.per_step_s, evidence.steps.step_s
    if steady and step and step.mean > 0:
        part_s = sum(steady.get(key, 0.0) for key in keys)
        if abs(part_s / step.mean - share) <= _SAME_SHARE:
            apart = percent_apart(part_s, step.mean, share)
            return f", {pair(part_s, step.mean)} a step{apart}"
    part_s = sum(evidence.training.get(key, 0.0) for key in keys)
    return f", {pair(part_s, evidence.training_s)}"


def _compute_headline(
    evidence: Evidence, compute: float, level: str, name: str, share: float
) -> tuple[str, float]:
    what, of_headline = "forward, backward and optimizer", compute
    if evidence.has_device:
        what += " with waiting for the GPU or copying"
    text = f"COMPUTE-BOUND, {level} data-bound: {what} take {percent(compute)} of training time"
    compiling = evidence.training.get(COMPILE_KEY, 0.0) / (evidence.training_s or 1.0)
    if compiling >= HIGH_SHARE:
        of_headline = compiling
        text = (
            f"COMPILE-BOUND: torch.compile takes {percent(compiling)} of training time; {what} "
            f"without it take {percent(max(compute - compiling, 0.0))}"
        )
    python = None if evidence.has_device else evidence.python_in_model
    in_python = python.total_s / (evidence.training_s or 1.0) if python is not None else 0.0
    if in_python >= TOLD_FROM_SHARE:
        text += f", Python code inside them about {percent(in_python)} of it"
    loss = evidence.loss_in_loop_s / (evidence.training_s or 1.0)
    if loss >= TOLD_FROM_SHARE and evidence.loss_at is not None:
        text += f", {percent(loss)} in the loss or a metric at {evidence.loss_at}"
    words = {
        "data": "starting the loaders" if level == "not" else "waiting for data",
        "evaluation": "evaluation",
        "checkpoint": "checkpoints",
        "host": "Python between them",
        "communication": "calls of torch.distributed",
    }
    if share >= MODERATE_SHARE:
        return f"{text}; next comes {words[name]} with {percent(share)}", of_headline
    return f"{text}; nothing else reaches {percent(MODERATE_SHARE)}", of_headline


def device_verdict(
    device: DeviceEvidence,
    *,
    training_s: float,
    evaluation_s: float,
    sites: Mapping[str, str | None],
) -> Verdict:
    """Names what keeps the device from working, if it is large enough.

    What is idle for certain is counted; the gaps between kernels, where looks tell them, are the
    host's. Where the device keeps up with the host, so is all the time in which it may have been
    idle while the host gave out work, compiling and warm-up left out: however much of it the device
    worked, it would have waited for the host.

    Args:
        evaluation_s: Of `training_s`, in evaluation, idle or not.
        sites: The user's line by bottleneck, where there is one.
    """
    low, high = device.busy
    settled_s = (1 - device.warmup) * training_s
    time = AFTER_WARMUP if device.warmup else "training time"
    at_work = f"the device was at work in {_interval(low, high)} of {time}"
    if low >= DEVICE_BOUND_SHARE:
        headline = (
            f"GPU-BOUND: the device was at work in at least {percent(low)} of {time}; "
            f"faster loading or less Python would gain at most {percent(1 - low)}"
        )
        return Verdict(_COMPUTE, headline, "not", low)
    shares = {name: device.idle.get(cause, 0.0) for name, cause in _CAUSE_OF.items()}
    shares["evaluation"] = evaluation_s / (settled_s or 1.0)
    launching = device.launching
    shares["host"] += launching
    name = max(shares, key=lambda key: shares[key])
    share = shares[name]
    computing = high - device.while_launching
    if share >= HIGH_SHARE or (share >= MODERATE_SHARE and computing < _MOST):
        level = "highly" if share >= HIGH_SHARE else "moderately"
        if name == "host" and launching > share / 2:
            headline = _launch_headline(at_work, share, keeps_up=device.keeps_up)
            return Verdict("host", headline, level, share)
        site = sites.get(name)
        in_time = f"{percent(share)} of {time}"
        headline = _headline(name, share, in_time, share * settled_s, settled_s, site)
        return Verdict("host" if name == _COMPILING else name, headline, level, share, site)
    is_launching = name == "host" and launching > share / 2
    next_words = _LAUNCHING if is_launching else _NEXT_WORDS[name]
    following = f"; next comes {next_words} with {percent(share)}"
    following = following if share >= MODERATE_SHARE else ""
    if low >= _MOST:
        level = "moderately" if shares["data"] >= MODERATE_SHARE else "not"
        return Verdict(
            "compute", f"COMPUTE-BOUND, {level} data-bound: {at_work}{following}", level, low
        )
    return Verdict(
        "unknown", f"NO VERDICT: {at_work}: what it was idle for is not known well enough"
    )


def _headline(
    name: str, share: float, in_time: str, idle_s: float, settled_s: float, site: str | None
) -> str:
    at = f" at {site}" if site else ""
    over = f" over {site}" if site else ""
    in_training = f"in {in_time}, {pair(idle_s, settled_s)}"
    if name == "evaluation":
        return f"EVALUATION: it takes {in_time}{over}, {idle_s:.1f} s"
    words = {
        "data": f"DATA-BOUND: the device is idle while the loop waits for {site or 'its data'}",
        "transfer": f"COPY-BOUND: the device does nothing but copy, most of it{at},"
        if site
        else "COPY-BOUND: the device does nothing but copy",
        "sync": f"SYNC-BOUND: the device is idle while the loop waits for its values{at}",
        "host": "HOST-BOUND: the device is idle while Python runs between the parts of a step",
        _COMPILING: "HOST-BOUND: the device is idle while torch.compile compiles again",
        "checkpoint": f"CHECKPOINTS: the device is idle while they are written or read{at}",
    }[name]
    return f"{'' if share >= HIGH_SHARE else 'MODERATELY '}{words} {in_training}"


def _launch_headline(at_work: str, share: float, *, keeps_up: bool) -> str:
    since = "had done all it was given at the end of nearly every forward, backward and update"
    since = since if keeps_up else "waited for more in the midst of forward, backward and update"
    return f"HOST-BOUND: {at_work}, and {since}: {_LAUNCHING}, for up to {percent(share)}"


def _interval(low: float, high: float) -> str:
    ends = percent(low), percent(high)
    return ends[0] if ends[0] == ends[1] else f"{ends[0][:-2]} to {ends[1]}"
