"""The device waits for copies between it and the host.

What it means: a batch is copied to the device while the device has nothing else to do. From memory
that is not pinned (pageable) each copy goes through a buffer and blocks the host; pinned memory and
non_blocking=True let copying and computing overlap.

How it is measured: marks in the device's stream around each copy: time in which it did nothing but
copy, or had run dry while the host was in a copy. The line named is the one that cost most of that
in the training phase.

When it is wrong: where the bytes themselves are too many for the link, overlapping hides only what
computing is long enough to hide. Nothing of it is known for work on side streams.

What to do: DataLoader(..., pin_memory=True) and .to(device, non_blocking=True); copy a batch once,
as one tensor; send bytes (uint8) and convert them on the device. Where the dataset or the collate
function makes the copies, the loop is to make them: torch pins nothing that is on a device. Of a
batch that is of a class of the script's own, the loader pins what its pin_memory() method returns,
and else nothing; a tensor that no loader gives has .pin_memory().
"""

from __future__ import annotations

from typing import Any, Final

from trainprof.analysis.diagnosis.case import Case
from trainprof.analysis.diagnosis.gains import outside_steps
from trainprof.analysis.diagnosis.loader_cautions import OFF_DEVICE, counts_for_all
from trainprof.analysis.diagnosis.loader_change import call_with
from trainprof.analysis.diagnosis.plain import plain_finding
from trainprof.analysis.diagnosis.rule import Threshold
from trainprof.analysis.diagnosis.wording import span
from trainprof.analysis.finding import LOADER_ID, Finding
from trainprof.analysis.passes import TRAINING
from trainprof.analysis.summary import Loader
from trainprof.analysis.traffic import dearest_in_training
from trainprof.analysis.verdict_level import percent

ID: Final = "blocking_copies"
KEYS: Final[tuple[str, ...]] = ("transfer",)
THRESHOLDS: Final = {
    "share": Threshold(0.1, "of training, the device idle for it (TraceML)"),
}
_MOSTLY: Final = 0.5
_UNBLOCKED_BY_LIBRARY: Final = (
    "non_blocking=True for each tensor (a library makes the copies of this line: its .to() may "
    "take a device alone)"
)


def find(case: Case) -> Finding | None:
    least = case.threshold(ID, "share", THRESHOLDS["share"].value)
    spent_s = case.idle_s("copy_s") or 0.0
    if case.training_s <= 0 or spent_s < least * case.training_s:
        return None
    worst, are_several = dearest_in_training(case.summary.transfers)
    if worst is None:
        return None
    pageable = worst.direction == "h2d" and worst.pinned_share < _MOSTLY
    # What comes back to the host is read there: it would be read too early.
    comes_back = worst.direction == "d2h"
    blocking = not comes_back and worst.non_blocking_share < _MOSTLY
    is_made_there = pageable and any(fed.loader.touches_device for fed in case.feeding)
    how = [word for word, holds in (("pageable", pageable), ("blocking", blocking)) if holds]
    change: dict[str, Any] = {}
    loaders = _training_loaders(case)
    if pageable and not is_made_there and not all(one.pin_memory for one in loaders):
        change["pin_memory"] = True
    # What else than a tensor's own method is called there may take a device alone.
    is_by_library = worst.by_library_share > 0
    if blocking and not is_made_there and not is_by_library:
        change["non_blocking"] = True
    advice = "send fewer bytes: uint8 instead of float32, converted on the device"
    if comes_back:
        advice = "bring fewer values back, and more rarely: add them up on the device meanwhile"
    if is_made_there:
        advice = f"{OFF_DEVICE}: what comes out of a loader on the CPU can be pinned"
    elif pageable or blocking:
        told = [_pinned(case)] if pageable else []
        told += [_UNBLOCKED_BY_LIBRARY if is_by_library else ".to(device, non_blocking=True)"]
        advice = " with ".join(told)
    count = worst.count if worst.in_training is None else worst.in_training
    copies = f"{count} {' '.join([*how, 'copies'])}"
    if are_several:
        copies = f"copies, most of it for the {copies} at {worst.site}"
    return plain_finding(
        ID,
        f"the device waits {span(spent_s)}, {percent(spent_s / case.training_s)} of training, for "
        f"{copies}",
        outside_steps(case, spent_s),
        site=worst.site,
        advice=advice,
        change=change,
        cautions=_cautions(case, change) if pageable and not is_made_there else [],
        evidence={
            "copy_idle_s": spent_s,
            "copy_idle_share": spent_s / case.training_s,
            "bytes": worst.bytes,
            "pinned_share": worst.pinned_share,
            "non_blocking_share": worst.non_blocking_share,
            **({LOADER_ID: case.feeding[0].loader.id} if len(case.feeding) == 1 else {}),
        },
    )


def _training_loaders(case: Case) -> list[Loader]:
    return [one for one in case.summary.loaders if one.role == TRAINING]


def _cautions(case: Case, change: dict[str, Any]) -> list[str]:
    pinning = {name: value for name, value in change.items() if name == "pin_memory"}
    for_all = [said for fed in case.feeding for said in counts_for_all(fed.loader, pinning)]
    return ["pinned batches take memory that cannot be swapped out", *dict.fromkeys(for_all)]


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
