"""One headline: the largest share of training, or why a device was idle, as a measured fact."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from trainprof.analysis.run.evidence import DeviceEvidence, Evidence
from trainprof.analysis.statistics.step_noise import pace_half_width, share_half_width
from trainprof.analysis.summary.code import OutsideLoop
from trainprof.analysis.summary.device import AFTER_WARMUP
from trainprof.analysis.summary.finding import Finding, is_small, leads
from trainprof.analysis.summary.levels import (
    HIGH_SHARE,
    MODERATE_SHARE,
    pair,
    percent,
    sentence,
)
from trainprof.analysis.summary.loader import Loader, cost_s
from trainprof.analysis.summary.run import BOTTLENECK_KEYS, COMPILE_KEY, COMPUTE_KEYS, Verdict
from trainprof.analysis.timeline.ledger import ELSEWHERE, LOADER_KEYS
from trainprof.analysis.timeline.steady_state import MIN_STEADY_STEPS
from trainprof.analysis.timeline.step_table import StepTable
from trainprof.findings.wording import number_of

# Start-up is named only in runs that are meant to be long, and when it is most of them.
STARTUP_SHARE: Final = 0.5
STARTUP_MIN_WALL_S: Final = 60.0

# A part whose share of a steady step is this much of its share of training lies in steps.
_IN_STEPS_SHARE: Final = 0.5
# A headline names no part of less.
_NAMED_FROM: Final = 0.1
# Of the waiting for all loaders: the others are not worth a word.
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
_LEADS: Final = {
    "data": "Data loading is the bottleneck",
    "transfer": "Copying is the bottleneck",
    "sync": "Synchronizing calls are the bottleneck",
    "host": "Python in the loop is the bottleneck",
    "checkpoint": "Checkpoints are the bottleneck",
    "evaluation": "Validation is the bottleneck",
    "communication": "Communication is the bottleneck",
    "startup": "Start-up is the bottleneck",
    _COMPILING: "Compiling is the bottleneck",
}
_COMPUTING: Final = {
    "forward": ("forward",),
    "loss": ("loss",),
    "backward": ("backward", "recompute"),
    "optimizer": ("optimizer", "zero_grad"),
}
# Of the mean of few steps, however uncertain that is.
_LEAST_PACE: Final = 0.1
_LONGER: Final = "Run longer, e.g. with --max-steps 30."


def verdict(evidence: Evidence) -> Verdict:
    """Names the largest part of training that is not computing, if it is large enough.

    Where computing is most of the time and nothing else reaches HIGH_SHARE, it is `compute`, and
    the level says how far the loop is bound by its data: not or moderately. Few steps get a verdict
    where their intervals exclude any other.
    """
    if evidence.has_timed_lines:
        return Verdict("unknown", "No verdict: line timing slows some parts more than others.")
    if evidence.was_synchronized:
        text = "No verdict: --cuda-sync runs each phase alone, so nothing overlaps."
        return Verdict("unknown", text)
    if evidence.steps.steps == 0 and evidence.training.get("evaluation", 0) > 0:
        site = evidence.evaluation_site
        over = f" over {site}" if site else ""
        text = f"No training step seen: inference{over}, no backward and no optimizer call."
        return Verdict("unknown", text, None, None, site)
    if evidence.steps.steady_steps < MIN_STEADY_STEPS:
        counted = number_of(evidence.steps.steady_steps, "steady step")
        longer = f" {_LONGER}" if evidence.steps.steps else ""
        text = f"Too few steps for a verdict: {counted}, {MIN_STEADY_STEPS} needed.{longer}"
        return Verdict("unknown", text)
    if evidence.wall_s >= STARTUP_MIN_WALL_S:
        share = evidence.startup_s / evidence.wall_s
        if share > STARTUP_SHARE:
            place, site = _first_of_startup(evidence.startup)
            text = (
                f"{_LEADS['startup']}: {evidence.startup_s:.1f} of {evidence.wall_s:.1f} s "
                f"({percent(share)}) pass before the first batch{place}."
            )
            return Verdict("startup", text, "highly", share, site)
    few = evidence.few_steps
    return _largest(evidence) if few is None else _of_few(evidence, few)


def with_finding(verdict: Verdict, findings: Sequence[Finding]) -> Verdict:
    """Returns the verdict with the first finding as its headline, unless that gains little.

    One of unknown gain has to be about the bottleneck, or to slow everything.
    """
    if not findings or is_small(findings[0]) or verdict.bottleneck == "unknown":
        return verdict
    first, keys = findings[0], BOTTLENECK_KEYS.get(verdict.bottleneck, ())
    is_about = any(key in keys for key in first.traits.keys[:1])
    if first.predicted_speedup is None and not is_about and not leads(first):
        return verdict
    fact = sentence(first.title)
    lead = _LEADS.get(verdict.bottleneck, "") if verdict.level == "highly" else ""
    is_its_lead = is_about and bool(lead) and verdict.headline.startswith(lead)
    if is_its_lead and not fact.startswith(lead.partition(" ")[0]):
        fact = f"{lead}. {fact}"
    return replace(verdict, headline=fact)


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
    why = "the first steps and loader starts take most of training"
    if same[0]:
        why = f"{counted} differ too much"
    return Verdict("unknown", f"Too few steps for a verdict: {why}. {_LONGER}")


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
        return f", {line.seconds:.1f} s of it at {line.site}", line.site
    if package is not None:
        return f", {package.seconds:.1f} s of it importing {package.package}", package.site
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
    of_training = _shares(evidence)
    shares = of_training | _shares_in_steps(evidence, of_training)
    compute = shares.pop(_COMPUTE)
    name = max(shares, key=lambda key: shares[key])
    share = shares[name]
    if share >= HIGH_SHARE or (share >= MODERATE_SHARE and compute < _MOST):
        return _named(evidence, name, share, of_training[name])
    if compute >= _MOST:
        level = level or ("moderately" if shares["data"] >= MODERATE_SHARE else "not")
        headline, share = _compute_headline(evidence, of_training[_COMPUTE])
        return Verdict(_COMPUTE, headline, level, share)
    return Verdict("none", f"No single bottleneck: {_largest_part(evidence)}.")


def _level(evidence: Evidence, name: str, share: float) -> str:
    """On an accelerator without device times, the host's waits may have cost nothing."""
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


def _shares_in_steps(evidence: Evidence, shares: Mapping[str, float]) -> dict[str, float]:
    """Returns what Python and computing take by steady steps: the same in a short and a long run.

    Python between steps counts by itself. {} with few steps, which are judged by intervals.
    """
    steady, step = evidence.steps.per_step_s, evidence.steps.step_s
    is_known = steady and step and step.mean > 0 and evidence.training_s > 0
    if not is_known or evidence.few_steps is not None or evidence.collectives:
        return {}
    assert steady
    assert step
    in_step = {
        name: sum(steady.get(key, 0.0) for key in _parts(evidence)[name]) / step.mean
        for name in ("host", _COMPUTE)
    }
    steps_share = evidence.steps.steps * step.mean / evidence.training_s
    between = max(shares["host"] - in_step["host"] * steps_share, 0.0)
    inside = max(1.0 - shares["evaluation"] - shares["checkpoint"] - between, 0.0)
    return {
        "host": max(in_step["host"] * inside, between),
        _COMPUTE: in_step[_COMPUTE] * inside,
    }


def _named(evidence: Evidence, name: str, share: float, of_training: float) -> Verdict:
    """Returns the verdict on a part. Its `share` decides; what is reported is that of training."""
    describe = {
        "data": _data_headline,
        "evaluation": _evaluation_headline,
        "checkpoint": _checkpoint_headline,
        "host": _host_headline,
        "communication": _communication_headline,
    }[name]
    level = _level(evidence, name, share)
    fact, site = describe(evidence, of_training)
    headline = f"{_LEADS[name]}: {fact}."
    if share < HIGH_SHARE:
        headline = f"No single bottleneck: {_largest_part(evidence)}."
    elif evidence.has_device and name in _HIDDEN_BY_A_DEVICE:
        headline += " Whether the GPU worked during that time is unknown."
    return Verdict(name, headline, level, of_training, site)


def _largest_part(evidence: Evidence) -> str:
    spent = evidence.steps.per_step_s or evidence.training
    groups = {**_parts(evidence), **_COMPUTING, "copying": ("transfer",), "syncs": ("sync",)}
    del groups[_COMPUTE]
    words = {"data": "waiting for data", "host": "Python in the loop", "evaluation": "validation"}
    seconds = {name: sum(spent.get(key, 0.0) for key in keys) for name, keys in groups.items()}
    name = max(seconds, key=lambda name: seconds[name])
    share = seconds[name] / (sum(spent.values()) or 1.0)
    what = "a step" if evidence.steps.per_step_s else "training"
    return f"the largest part of {what} is {words.get(name, name)}, {percent(share)}"


def _data_headline(evidence: Evidence, share: float) -> tuple[str, str | None]:
    site = _feeding_site(evidence)
    part = _share_of_site(evidence, site)
    step = _in_step(evidence, LOADER_KEYS, share)
    whole = step or _in_training(evidence, LOADER_KEYS)
    loader = "data" if site is None or part < _ALONE_SHARE else f"the loader at {site}"
    text = f"each step waits {whole.replace(' of ', ' of its ')} for {loader}"
    if step is None:
        text = f"{whole} is waiting for {loader}, mostly while it starts"
    return text if part >= _ALONE_SHARE else f"{text}, {percent(part)} of it at {site}", site


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
    # Workers that end with the script are outside of training.
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
    where = f", called at {call}" if call else f", over {site}" if site else ""
    return f"{_in_training(evidence, ('evaluation',))}{where}", call or site


def _checkpoint_headline(evidence: Evidence, share: float) -> tuple[str, str | None]:
    site = evidence.checkpoints.site
    at, calls = f" at {site}" if site else "", evidence.checkpoints
    saves = [calls.called] if calls.saves or not calls.loads else []
    called = " and ".join((*saves, "torch.load") if calls.loads else saves)
    take = "take" if " and " in called else "takes"
    return f"{called}{at} {take} {_in_training(evidence, ('checkpoint',))}", site


def _host_headline(evidence: Evidence, share: float) -> tuple[str, str | None]:
    is_collecting = evidence.training.get("gc", 0.0) > evidence.training.get("other", 0.0)
    step = None if evidence.collectives else _in_step(evidence, _HOST_KEYS, share)
    text = f"it takes {step} a step"
    if step is None:
        text = f"it takes {_in_training(evidence, _HOST_KEYS, share)}, mostly outside of steps"
    if evidence.waits_at is not None:
        text += f", waiting for another thread or process at {evidence.waits_at}"
    elif is_collecting:
        text += ", mostly garbage collection"
    elif evidence.other_place and evidence.other_place != ELSEWHERE:
        text += f", mostly {evidence.other_place}"
    ahead = [x for x in evidence.loaders if x.role == "training" and x.thread != "training"]
    if ahead:
        text += f". Another thread reads {ahead[0].site}: waiting for it is included"
    return text, None


def _communication_headline(evidence: Evidence, share: float) -> tuple[str, str | None]:
    worst = evidence.collectives[0]
    text = (
        f"torch.distributed calls take {_in_training(evidence, (), share)}, most of it "
        f"{worst.function} at {worst.site}. Waiting for slower ranks is included"
    )
    return text, worst.site


def _in_step(evidence: Evidence, keys: tuple[str, ...], share: float) -> str | None:
    """Returns a part in time of a steady step; None where most of it lies outside of steps.

    Args:
        share: Of training.
    """
    steady, step = evidence.steps.per_step_s, evidence.steps.step_s
    if not steady or not step or step.mean <= 0:
        return None
    part_s = sum(steady.get(key, 0.0) for key in keys)
    is_in_steps = part_s / step.mean >= _IN_STEPS_SHARE * share
    return pair(part_s, step.mean) if is_in_steps else None


def _in_training(evidence: Evidence, keys: tuple[str, ...], share: float | None = None) -> str:
    whole_s = evidence.training_s
    part_s = sum(evidence.training.get(key, 0.0) for key in keys)
    part_s = part_s if share is None else share * whole_s
    return f"{pair(part_s, whole_s)} of training ({percent(part_s / (whole_s or 1.0))})"


def _compute_headline(evidence: Evidence, compute: float) -> tuple[str, float]:
    compiling = evidence.training.get(COMPILE_KEY, 0.0) / (evidence.training_s or 1.0)
    if compiling >= HIGH_SHARE:
        whole = _in_training(evidence, (COMPILE_KEY,))
        return f"{_LEADS[_COMPILING]}: torch.compile takes {whole}.", compiling
    spent = evidence.steps.per_step_s or evidence.training
    whole_s = sum(spent.values()) or 1.0
    groups = {**_COMPUTING, "waiting for the GPU": _DEVICE_KEYS if evidence.has_device else ()}
    shares = {
        name: sum(spent.get(key, 0.0) for key in keys) / whole_s for name, keys in groups.items()
    }
    named = [name for name in shares if shares[name] >= _NAMED_FROM]
    *names, last = named or ["forward, backward and optimizer"]
    what = f"{', '.join(names)} and {last}" if names else last
    share = sum(shares[name] for name in named or shares)
    be = "are" if names or not named else "is"
    of = "a step" if evidence.steps.per_step_s else "training"
    return f"Compute-bound: {what} {be} {percent(share)} of {of}.", compute


def device_verdict(
    device: DeviceEvidence,
    *,
    training_s: float,
    evaluation_s: float,
    sites: Mapping[str, str | None],
) -> Verdict:
    """Names what keeps the device from working, if it is large enough.

    What is idle for certain is counted; the gaps between kernels, where samples show them, are the
    host's. Where the device keeps up with the host, so is all the time in which it may have been
    idle while the host launched kernels, without compiling and warm-up: however much of it the
    device worked, it would have waited for the host.

    Args:
        evaluation_s: Of `training_s`, in evaluation, idle or not.
        sites: The user's line by bottleneck, where there is one.
    """
    low, high = device.busy
    settled_s = (1 - device.warmup) * training_s
    shares = {name: device.idle.get(cause, 0.0) for name, cause in _CAUSE_OF.items()}
    shares["evaluation"] = evaluation_s / (settled_s or 1.0)
    of = AFTER_WARMUP if device.warmup else "training"
    busy = f"the GPU is busy {_interval(low, high)} of {of}"
    if low >= DEVICE_BOUND_SHARE:
        text = f"GPU-bound: the GPU is busy at least {percent(low)} of {of}."
        return Verdict(_COMPUTE, text, "not", low)
    launching = device.launching
    shares["host"] += launching
    name = max(shares, key=lambda key: shares[key])
    share = shares[name]
    computing = high - device.while_launching
    if share >= HIGH_SHARE or (share >= MODERATE_SHARE and computing < _MOST):
        level = "highly" if share >= HIGH_SHARE else "moderately"
        site, most = sites.get(name), f"{percent(share)} of {of}"
        if name == "host" and launching > share / 2:
            site = None
            text = f"Launch-bound: the GPU is idle up to {most}, between small kernels."
        else:
            text = f"{_LEADS[name]}: {_idle_words(name, most, site)}."
        if share < _NAMED_FROM:
            text = f"No single bottleneck: {busy}."
        return Verdict("host" if name == _COMPILING else name, text, level, share, site)
    if low >= _MOST:
        level = "moderately" if shares["data"] >= MODERATE_SHARE else "not"
        return Verdict(_COMPUTE, f"Compute-bound: {busy}.", level, low)
    return Verdict("unknown", f"No verdict: {busy}. What it idles for is unknown.")


def _idle_words(name: str, most: str, site: str | None) -> str:
    at = f" at {site}" if site else ""
    return {
        "data": f"the GPU idles {most}, waiting for {f'the loader{at}' if site else 'data'}",
        "transfer": f"the GPU only copies for {most}{f', mostly{at}' if site else ''}",
        "sync": f"the GPU idles {most}, around calls that wait for its values{at}",
        "host": f"the GPU idles {most}, while Python runs between the parts of a step",
        _COMPILING: f"the GPU idles {most}, while torch.compile compiles again",
        "checkpoint": f"the GPU idles {most}, while checkpoints are written or read{at}",
        "evaluation": f"{most}{f', over {site}' if site else ''}",
    }[name]


def _interval(low: float, high: float) -> str:
    ends = percent(low), percent(high)
    return ends[0] if ends[0] == ends[1] else f"{ends[0][:-2]} to {ends[1]}"
