"""The headline of a run on an accelerator: why the device had nothing to do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from trainprof.analysis.run.evidence import DeviceEvidence
from trainprof.analysis.summary.device import AFTER_WARMUP
from trainprof.analysis.summary.levels import HIGH_SHARE, MODERATE_SHARE, pair, percent
from trainprof.analysis.summary.run import Verdict

# From here on faster loading or less Python could gain a tenth at most.
DEVICE_BOUND_SHARE: Final = 0.9
# Of the training phase: from here on computing is most of it.
_MOST: Final = 0.5
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
_LAUNCHING: Final = "small pieces of work, given out too slowly"


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
        device: What it tells.
        training_s: Length of the training phase.
        evaluation_s: Of it, in evaluation, idle or not.
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
        return Verdict("compute", headline, "not", low)
    shares = {name: device.idle.get(cause, 0.0) for name, cause in _CAUSE_OF.items()}
    shares["evaluation"] = evaluation_s / (settled_s or 1.0)
    launching = device.launching
    shares["host"] += launching
    name = max(shares, key=lambda key: shares[key])
    share = shares[name]
    computing = high - device.given_out
    if share >= HIGH_SHARE or (share >= MODERATE_SHARE and computing < _MOST):
        level = "highly" if share >= HIGH_SHARE else "moderately"
        if name == "host" and launching > share / 2:
            headline = _launch_headline(at_work, keeps_up=device.keeps_up)
            return Verdict("host", headline, level, share)
        site = sites.get(name)
        of_time = f"{percent(share)} of {time}"
        headline = _headline(name, share, of_time, share * settled_s, settled_s, site)
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
    name: str, share: float, of_time: str, idle_s: float, settled_s: float, site: str | None
) -> str:
    at = f" at {site}" if site else ""
    over = f" over {site}" if site else ""
    of_training = f"in {of_time}, {pair(idle_s, settled_s)}"
    if name == "evaluation":
        return f"EVALUATION: it takes {of_time}{over}, {idle_s:.1f} s"
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
    return f"{'' if share >= HIGH_SHARE else 'MODERATELY '}{words} {of_training}"


def _launch_headline(at_work: str, *, keeps_up: bool) -> str:
    since = "had done all it was given at the end of nearly every forward, backward and update"
    since = since if keeps_up else "waited for more in the midst of forward, backward and update"
    return f"HOST-BOUND: {at_work}, and {since}: {_LAUNCHING}"


def _interval(low: float, high: float) -> str:
    ends = percent(low), percent(high)
    return ends[0] if ends[0] == ends[1] else f"{ends[0][:-2]} to {ends[1]}"
