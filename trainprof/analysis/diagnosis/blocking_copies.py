"""The device waits for copies between it and the host.

What it means: a batch is copied to the device while the device has nothing else to do. From memory
that is not pinned (pageable) each copy goes through a buffer and blocks the host: a pinned one is
quicker, and non_blocking=True lets the host go on meanwhile. It still comes between the kernels of
two steps, for it waits in the same stream: only on a stream of its own it overlaps with them.

How it is measured: marks in the device's stream around each copy: time in which it did nothing but
copy, or had run dry while the host was in a copy. The line named is the one that cost most of that
in the training phase.

When it is wrong: where the bytes themselves are too many for the link, overlapping hides only what
computing is long enough to hide. Nothing of it is known for work on side streams. How much quicker
pinned copies are is not known before they are made: the gain is what cannot be exceeded. Copies of
less than 64 KiB take their time for the way alone: pinned they are hardly quicker, and the gain is
what two in one would save. What is larger than a loader's batches is not taken for one of them.

What to do: what comes back to the host: bring less of it, and more rarely; Hugging Face's Trainer
brings all logits of an evaluation, unless preprocess_logits_for_metrics= makes less of them on the
device. What goes there: DataLoader(..., pin_memory=True) and .to(device, non_blocking=True); copy a
batch once, as one tensor; send bytes (uint8) and convert them on the device; copy the next batch on
another torch.cuda.Stream while the device works on this one (with wait_stream, and record_stream of
what is copied). With non_blocking=True what is copied must stay as it is until the device has it,
and a copy back to the host must be waited for before it is read: of a line that copies both ways
only the one to the device is to change, which is told without a patch. So it is where a library
makes the copies (a batch of its own class, whose .to() may take a device alone). Where the dataset
or the collate function makes the copies, the loop is to make them: torch pins nothing that is on a
device. Of a batch that is of a class of the script's own, the loader pins what its pin_memory()
method returns, and else nothing; a tensor that no loader gives has .pin_memory(), and one that the
copying line makes (torch.randn(...).to(device)) is to be made on the device, by device=.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from trainprof.analysis.device_figures import Transfer
from trainprof.analysis.diagnosis.case import Case
from trainprof.analysis.diagnosis.gains import outside_steps
from trainprof.analysis.diagnosis.loader_cautions import OFF_DEVICE
from trainprof.analysis.diagnosis.loader_change import call_with
from trainprof.analysis.diagnosis.plain import plain_finding
from trainprof.analysis.diagnosis.rule import Threshold
from trainprof.analysis.diagnosis.wording import size, span
from trainprof.analysis.finding import LOADER_ID, Finding
from trainprof.analysis.loader_figures import Loader
from trainprof.analysis.passes import TRAINING
from trainprof.analysis.traffic import dearest_in_training, idle_meanwhile_s

ID: Final = "blocking_copies"
KEYS: Final[tuple[str, ...]] = ("transfer",)
THRESHOLDS: Final = {
    "share": Threshold(0.1, "of training, the device idle for it (TraceML)"),
}
_MOSTLY: Final = 0.5
_BY_ITSELF: Final = ".pin_memory() on the tensor"
# By the thread that pins: 19 MB in 2.9 ms, and 154 MB in 50 (host of an H100).
_PINNED_BYTES_PER_S: Final = (3e9, 6.5e9)
_MUCH_OF_A_STEP: Final = 0.5
_BY_LIBRARY: Final = (
    "non_blocking=True for each tensor (a library makes the copies of this line: its .to() may "
    "take a device alone)"
)
_FEWER_BYTES: Final = "send fewer bytes: uint8 instead of float32, converted on the device"
# CUDA's runtime (API synchronization behavior) takes up so much at once, pinned or not, and does
# not block for it: what such a copy takes is none of its bytes.
_SMALL_BYTES: Final = 64 << 10
# Of what small copies take: two in one.
_JOINED_SAVES: Final = 0.5
# A batch, or what has been made of one without growing: means may differ by the last of a pass.
_AS_LARGE_TIMES: Final = 1.05
_HANGS_ON: Final = (
    "a value that decides what comes next (an action, say) has to come each time: several at once "
    "(environments, samples) make one copy of many"
)
_WRITTEN_AGAIN: Final = (
    "with non_blocking=True the host does not wait for the copy: what is copied must not be "
    "written to before the device has it, as a buffer that is filled anew for each step is"
)
_BESIDE: Final = (
    "copy the next batch on a stream of its own (torch.cuda.Stream) while the device works on this "
    "one"
)


def find(case: Case) -> Finding | None:
    least = case.threshold(ID, "share", THRESHOLDS["share"].value)
    spent_s = case.idle_s("copy_s") or 0.0
    if case.settled_s <= 0 or spent_s < least * case.settled_s:
        return None
    worst, are_several = dearest_in_training(case.summary.transfers)
    if worst is None:
        return None
    # What comes back to the host is read there: it would be read too early.
    pageable = worst.direction == "h2d" and worst.pinned_share < _MOSTLY
    blocking = worst.direction != "d2h" and worst.non_blocking_share < _MOSTLY
    how = [word for word, holds in (("pageable", pageable), ("blocking", blocking)) if holds]
    change = _change_for(case, worst, spent_s, pageable=pageable, blocking=blocking)
    count = worst.count if worst.in_training is None else worst.in_training
    copies = f"{count} {' '.join([*how, 'copies'])}"
    if are_several:
        copies = f"copies, most of it for the {copies} at {worst.site}"
    return plain_finding(
        ID,
        f"the device waits {span(spent_s)}, {case.of_settled(spent_s)}, for {copies}",
        outside_steps(case, change.gain_s),
        site=worst.site,
        advice=change.advice,
        change=change.arguments,
        cautions=change.cautions,
        also=change.also,
        evidence={
            "copy_idle_s": spent_s,
            "copy_idle_share": spent_s / case.settled_s,
            "copy_wait_s": _waited_s(case),
            "bytes": worst.bytes,
            "pinned_share": worst.pinned_share,
            "non_blocking_share": worst.non_blocking_share,
            **({LOADER_ID: case.feeding[0].loader.id} if len(case.feeding) == 1 else {}),
        },
    )


@dataclass(frozen=True, slots=True)
class _Change:
    """What to do about copies, what that saves at most, s, and what to say with it."""

    advice: str
    gain_s: float
    arguments: dict[str, Any] = field(default_factory=dict)
    cautions: list[str] = field(default_factory=list)
    also: list[str] = field(default_factory=list)


def _change_for(
    case: Case, worst: Transfer, spent_s: float, *, pageable: bool, blocking: bool
) -> _Change:
    if worst.direction == "d2h":
        advice = "bring fewer values back, and more rarely: add them up on the device meanwhile"
        return _Change(advice, spent_s, cautions=[_HANGS_ON])
    if worst.direction == "h2d" and _copy_loaders(case):
        if pageable:
            advice = f"{OFF_DEVICE}: what comes out of a loader on the CPU can be pinned"
            return _Change(advice, spent_s)
    elif worst.direction == "h2d" and worst.is_made_there:
        return _made_there(worst, spent_s)
    elif worst.direction == "h2d" and _each_bytes(worst) < _SMALL_BYTES:
        return _of_small_ones(case, worst, spent_s)
    return _of_batches(case, worst, spent_s, pageable=pageable, blocking=blocking)


def _made_there(worst: Transfer, spent_s: float) -> _Change:
    return _Change(
        "make it on the device, by device= in the call of torch's that makes it: nothing is copied "
        "then",
        min(idle_meanwhile_s(worst), spent_s),
        cautions=["random numbers that the device draws are others than the host's"],
    )


def _of_small_ones(case: Case, worst: Transfer, spent_s: float) -> _Change:
    small = [one for one in case.summary.transfers if _each_bytes(one) < _SMALL_BYTES]
    small_s = sum(idle_meanwhile_s(one) for one in small if one.direction == worst.direction)
    return _Change(
        f"fewer and larger copies: with {size(_each_bytes(worst))} each it is not their bytes that "
        "take time. Several tensors in one, or those of several samples (environments) at once: "
        "two in one save half of it",
        _JOINED_SAVES * min(small_s, spent_s),
        cautions=[_HANGS_ON],
    )


def _of_batches(
    case: Case, worst: Transfer, spent_s: float, *, pageable: bool, blocking: bool
) -> _Change:
    """Returns what makes copies of batches, or of as large tensors, quicker."""
    least = case.threshold(ID, "share", THRESHOLDS["share"].value)
    wait_s = _waited_s(case)
    is_waited_for = blocking and wait_s >= least * case.settled_s
    settings = case.builder()
    settings = settings if settings is not None and settings.copies else None
    # What else than a tensor's own method is called there may take a device alone.
    is_by_library = settings is None and worst.by_library_share > 0
    # A library knows the direction of each of its copies.
    back = _of_copies_back(case, worst) if blocking and settings is None else []
    plain = ".to(device, non_blocking=True)" + " for copies to the device alone" * bool(back)
    to = _BY_LIBRARY if is_by_library else plain
    if settings is not None:
        to = settings.copies or ""
    arguments: dict[str, Any] = {}
    may_be_batches = _may_be_batches(case, worst)
    if pageable and may_be_batches and not all(one.pin_memory for one in _training_loaders(case)):
        arguments["pin_memory"] = True
    may_unblock = (pageable or is_waited_for) and not _copy_loaders(case)
    if blocking and may_unblock and settings is None and not is_by_library and not back:
        arguments["non_blocking"] = True
    unblocked = [*back, _WRITTEN_AGAIN] if worst.direction == "h2d" else []
    if pageable:
        pinned = _pinned(case) if may_be_batches else _BY_ITSELF
        return _Change(
            f"{pinned} with {to}",
            spent_s,
            arguments,
            [*unblocked, *_cautions(case, arguments)],
            [f"that makes copies quicker, and none of them overlap: for that {_BESIDE}"],
        )
    if is_waited_for:
        return _Change(
            to if settings is None else f"{settings.call}(..., {to})",
            wait_s,
            arguments,
            unblocked,
            [f"the host waits no longer, but copies do not overlap: for that {_BESIDE}"],
        )
    also = [f"non_blocking=True saves only what the host waits for, {span(wait_s)}"]
    return _Change(f"{_BESIDE}; or {_FEWER_BYTES}", spent_s, arguments, also=also * blocking)


def _of_copies_back(case: Case, worst: Transfer) -> list[str]:
    """Returns what keeps a line from being told not to block: that it copies the other way, too.

    torch copies to pinned memory then, and the host reads there what has not come yet.
    """
    held = "has to stay blocking, or the host reads values before they are there"
    rows = case.summary.transfers
    if any(one.site == worst.site and one.direction == "d2h" for one in rows):
        return [f"the same line copies back to the host, too: that copy {held}"]
    if case.summary.run.part is not None:
        return [f"a copy by the same line back to the host, in another part of the run, {held}"]
    return []


def _waited_s(case: Case) -> float:
    return sum(device.copy_wait_s for device in case.summary.devices or ())


def _copy_loaders(case: Case) -> bool:
    """Whether what makes the batches of training copies them to the device as well."""
    return any(fed.loader.touches_device for fed in case.feeding)


def _each_bytes(one: Transfer) -> float:
    return one.bytes / max(one.count, 1)


def _may_be_batches(case: Case, worst: Transfer) -> bool:
    """Whether what is copied is no larger than batches are, as far as that is known."""
    fetches = [one.fetch for one in _training_loaders(case)]
    told = [fetch.batch_bytes for fetch in fetches if fetch is not None and fetch.batch_bytes]
    if not told or len(told) < len(fetches):
        return True
    return _each_bytes(worst) <= _AS_LARGE_TIMES * max(told)


def _training_loaders(case: Case) -> list[Loader]:
    return [one for one in case.summary.loaders if one.role == TRAINING]


def _cautions(case: Case, change: dict[str, Any]) -> list[str]:
    takes = ["pinned batches take memory that cannot be swapped out"]
    return [*takes, *(_pinning_takes(case) if "pin_memory" in change else [])]


def _pinning_takes(case: Case) -> list[str]:
    """Says what pinning itself may take, where that is much of a step."""
    known = [(fed, fed.loader.fetch) for fed in case.feeding if fed.loader.fetch is not None]
    fed, fetch = max(known, key=lambda one: one[1].batch_bytes or 0.0, default=(None, None))
    if fed is None or fetch is None:
        return []
    a_step = max(fed.loader.iterations / max(len(case.steps), 1), 1.0)
    batch_bytes = fetch.batch_bytes or 0.0
    low_s, high_s = (batch_bytes / rate for rate in reversed(_PINNED_BYTES_PER_S))
    step_s = case.summary.training.step_s
    if step_s is None or a_step * high_s < _MUCH_OF_A_STEP * step_s.p50:
        return []
    who = "one thread beside training" if fed.loader.num_workers else "the training process"
    return [
        f"a batch of {size(batch_bytes)} is copied once more to be pinned, by {who}, in some "
        f"{span(low_s)} to {span(high_s)}: steps cannot come faster"
    ]


def _pinned(case: Case) -> str:
    """Returns how batches come to be pinned, as far as it is known whose they are."""
    loaders = _training_loaders(case)
    if not loaders:
        return _BY_ITSELF
    if all(one.pin_memory for one in loaders):
        return (
            "a pin_memory() method for the batch's own class, which returns it pinned (the loader "
            "pins tensors, and what has one), or .pin_memory() on a tensor that no loader gives,"
        )
    builders = {fed.loader.built_by for fed in case.feeding}
    if len(builders) != 1 or None in builders:
        return "DataLoader(..., pin_memory=True)"
    return call_with(case.feeding[0].loader, {"pin_memory": True})
