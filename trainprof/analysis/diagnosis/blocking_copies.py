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
pinned copies are is not known before they are made: the gain is what cannot be exceeded.

What to do: what comes back to the host: bring less of it, and more rarely; Hugging Face's Trainer
brings all logits of an evaluation, unless preprocess_logits_for_metrics= makes less of them on the
device. What goes there: DataLoader(..., pin_memory=True) and .to(device, non_blocking=True); copy a
batch once, as one tensor; send bytes (uint8) and convert them on the device; copy the next batch on
another torch.cuda.Stream while the device works on this one (with wait_stream, and record_stream of
what is copied). Where the dataset or the collate function makes the copies, the loop is to make
them: torch pins nothing that is on a device. Of a batch that is of a class of the script's own, the
loader pins what its pin_memory() method returns, and else nothing; a tensor that no loader gives
has .pin_memory().
"""

from __future__ import annotations

from typing import Any, Final

from trainprof.analysis.diagnosis.case import Case
from trainprof.analysis.diagnosis.gains import outside_steps
from trainprof.analysis.diagnosis.loader_cautions import OFF_DEVICE, counts_for_all
from trainprof.analysis.diagnosis.loader_change import call_with
from trainprof.analysis.diagnosis.plain import plain_finding
from trainprof.analysis.diagnosis.rule import Threshold
from trainprof.analysis.diagnosis.wording import size, span
from trainprof.analysis.finding import LOADER_ID, Finding
from trainprof.analysis.loader_figures import Loader
from trainprof.analysis.passes import TRAINING
from trainprof.analysis.traffic import dearest_in_training

ID: Final = "blocking_copies"
KEYS: Final[tuple[str, ...]] = ("transfer",)
THRESHOLDS: Final = {
    "share": Threshold(0.1, "of training, the device idle for it (TraceML)"),
}
_MOSTLY: Final = 0.5
# By the thread that pins: 19 MB in 2.9 ms, and 154 MB in 50 (host of an H100).
_PINNED_BYTES_PER_S: Final = (3e9, 6.5e9)
_MUCH_OF_A_STEP: Final = 0.5
_BY_LIBRARY: Final = (
    "non_blocking=True for each tensor (a library makes the copies of this line: its .to() may "
    "take a device alone)"
)
_FEWER_BYTES: Final = "send fewer bytes: uint8 instead of float32, converted on the device"
# Of one copy back to the host: more than a loss, or a few predictions.
_LARGE_BYTES: Final = 1_000_000
_METRICS_OF_HUGGING_FACE: Final = (
    "Trainer(..., preprocess_logits_for_metrics=...), a function that gives on the device what "
    "compute_metrics needs of the logits (their argmax, say): all of them are brought back else"
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
    wait_s = sum(device.copy_wait_s for device in case.summary.devices or ())
    if worst is None:
        return None
    pageable = worst.direction == "h2d" and worst.pinned_share < _MOSTLY
    # What comes back to the host is read there: it would be read too early.
    comes_back = worst.direction == "d2h"
    blocking = not comes_back and worst.non_blocking_share < _MOSTLY
    is_made_there = pageable and any(fed.loader.touches_device for fed in case.feeding)
    how = [word for word, holds in (("pageable", pageable), ("blocking", blocking)) if holds]
    is_waited_for = blocking and wait_s >= least * case.settled_s
    settings = case.builder()
    settings = settings if settings is not None and settings.copies else None
    # What else than a tensor's own method is called there may take a device alone.
    is_by_library = settings is None and worst.by_library_share > 0
    to = _BY_LIBRARY if is_by_library else ".to(device, non_blocking=True)"
    if settings is not None:
        to = settings.copies or ""
    change: dict[str, Any] = {}
    loaders = _training_loaders(case)
    if pageable and not is_made_there and not all(one.pin_memory for one in loaders):
        change["pin_memory"] = True
    may_unblock = blocking and not is_made_there and (pageable or is_waited_for)
    if may_unblock and settings is None and not is_by_library:
        change["non_blocking"] = True
    advice, gain_s = f"{_BESIDE}; or {_FEWER_BYTES}", spent_s
    also = []
    is_large = worst.bytes >= _LARGE_BYTES * worst.count
    if comes_back and is_large and worst.by_library_share > _MOSTLY and _is_hugging_faces(case):
        advice = _METRICS_OF_HUGGING_FACE
    elif comes_back:
        advice = "bring fewer values back, and more rarely: add them up on the device meanwhile"
    if is_made_there:
        advice = f"{OFF_DEVICE}: what comes out of a loader on the CPU can be pinned"
    elif pageable:
        advice = f"{_pinned(case)} with {to}"
        also = [f"that makes copies quicker, and none of them overlap: for that {_BESIDE}"]
    elif is_waited_for:
        advice, gain_s = to if settings is None else f"{settings.call}(..., {to})", wait_s
        also = [f"the host waits no longer, but copies do not overlap: for that {_BESIDE}"]
    elif blocking:
        also = [f"non_blocking=True saves only what the host waits for, {span(wait_s)}"]
    count = worst.count if worst.in_training is None else worst.in_training
    copies = f"{count} {' '.join([*how, 'copies'])}"
    if are_several:
        copies = f"copies, most of it for the {copies} at {worst.site}"
    return plain_finding(
        ID,
        f"the device waits {span(spent_s)}, {case.of_settled(spent_s)}, for {copies}",
        outside_steps(case, gain_s),
        site=worst.site,
        advice=advice,
        change=change,
        cautions=_cautions(case, change) if pageable and not is_made_there else [],
        also=also,
        evidence={
            "copy_idle_s": spent_s,
            "copy_idle_share": spent_s / case.settled_s,
            "copy_wait_s": wait_s,
            "bytes": worst.bytes,
            "pinned_share": worst.pinned_share,
            "non_blocking_share": worst.non_blocking_share,
            **({LOADER_ID: case.feeding[0].loader.id} if len(case.feeding) == 1 else {}),
        },
    )


def _is_hugging_faces(case: Case) -> bool:
    return any(loader.built_by == "transformers" for loader in _training_loaders(case))


def _training_loaders(case: Case) -> list[Loader]:
    return [one for one in case.summary.loaders if one.role == TRAINING]


def _cautions(case: Case, change: dict[str, Any]) -> list[str]:
    pinning = {name: value for name, value in change.items() if name == "pin_memory"}
    for_all = [said for fed in case.feeding for said in counts_for_all(fed.loader, pinning)]
    takes = ["pinned batches take memory that cannot be swapped out"]
    return [*takes, *(_pinning_takes(case) if pinning else []), *dict.fromkeys(for_all)]


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
        return ".pin_memory() on the tensor"
    if all(one.pin_memory for one in loaders):
        return (
            "a pin_memory() method for the batch's own class, which returns it pinned (the loader "
            "pins tensors, and what has one), or .pin_memory() on a tensor that no loader gives,"
        )
    builders = {fed.loader.built_by for fed in case.feeding}
    if len(builders) != 1 or None in builders:
        return "DataLoader(..., pin_memory=True)"
    return call_with(case.feeding[0].loader, {"pin_memory": True})
