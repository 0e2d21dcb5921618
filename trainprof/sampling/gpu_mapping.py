"""Maps NVML's GPUs to the script's device numbers by CUDA_VISIBLE_DEVICES."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

VISIBLE_DEVICES: Final = "CUDA_VISIBLE_DEVICES"
DEVICE_ORDER: Final = "CUDA_DEVICE_ORDER"
_NVML_ORDER: Final = "PCI_BUS_ID"
# Prefixes of uuids as in `nvidia-smi -L`.
_GPU: Final = "GPU-"
_MIG: Final = "MIG-"


@dataclass(frozen=True, slots=True)
class MigInstance:
    """A part of a GPU that CUDA shows as a device."""

    uuid: str
    gpu_instance: int
    compute_instance: int


@dataclass(frozen=True, slots=True)
class NvmlDevice:
    """A GPU as NVML lists it; None for `instances` without MIG, for an unknown `uuid`."""

    uuid: str | None
    instances: tuple[MigInstance, ...] | None = None


@dataclass(frozen=True, slots=True)
class Numbering:
    """The script's numbers of the GPUs.

    Attributes:
        devices: Per NVML device the script's number, None if it has none or that is unknown.
        instances: The script's numbers of MIG instances, by uuid.
        is_visible: Per NVML device whether the script can use any of it, None if unknown.
        is_assumed: CUDA's order is assumed to be NVML's; the environment does not set it.
    """

    devices: tuple[int | None, ...]
    instances: Mapping[str, int]
    is_visible: tuple[bool | None, ...]
    is_assumed: bool


def numbering(devices: Sequence[NvmlDevice], environ: Mapping[str, str]) -> Numbering:
    """Returns the numbers that a script started with `environ` sees.

    `devices` are in NVML's order, that of the PCI bus.

    Source:
        CUDA C++ Programming Guide, "CUDA Environment Variables"; details as torch reads the
        variable (`torch.cuda._parse_visible_devices`, `_transform_uuid_to_ordinals`): numbers as
        strtoul, an unknown entry ends the list, a repeated one empties it.
    """
    visible = environ.get(VISIBLE_DEVICES)
    if visible is not None and visible.startswith(_GPU):
        return _numbered(devices, _by_uuid(visible, devices))
    if visible is not None and visible.startswith(_MIG):
        return _with_instances(devices, visible)
    # Without CUDA_DEVICE_ORDER CUDA lists the fastest first, by a rule it does not document.
    is_assumed = len(devices) > 1 and environ.get(DEVICE_ORDER) != _NVML_ORDER
    listed = list(range(len(devices))) if visible is None else _by_index(visible, len(devices))
    if listed and any(device.instances is not None for device in devices):
        # CUDA shows one instance, or whole GPUs only, depending on its version.
        unknown = (None,) * len(devices)
        return Numbering(unknown, {}, unknown, is_assumed=True)
    return _numbered(devices, listed, is_assumed=is_assumed and bool(listed))


def _numbered(
    devices: Sequence[NvmlDevice], listed: Sequence[int], *, is_assumed: bool = False
) -> Numbering:
    """Numbers devices in the order of `listed`."""
    number = {index: logical for logical, index in enumerate(listed)}
    return Numbering(
        devices=tuple(number.get(index) for index in range(len(devices))),
        instances={},
        is_visible=tuple(index in number for index in range(len(devices))),
        is_assumed=is_assumed,
    )


def _by_index(visible: str, count: int) -> list[int]:
    listed: list[int] = []
    for entry in visible.split(","):
        index = _leading_number(entry.strip())
        if index is None or not 0 <= index < count:
            break
        if index in listed:
            return []
        listed.append(index)
    return listed


def _leading_number(entry: str) -> int | None:
    """Returns the number at the start of `entry`, as strtoul does; None without one."""
    sign, digits = (entry[0], entry[1:]) if entry[:1] in ("+", "-") else ("", entry)
    length = next((at for at, c in enumerate(digits) if c not in "0123456789"), len(digits))
    # Ten digits are more than any device number, and int() refuses very long texts.
    return int(sign + digits[: min(length, 10)]) if length else None


def _by_uuid(visible: str, devices: Sequence[NvmlDevice]) -> list[int]:
    listed: list[int] = []
    for entry in visible.split(","):
        # The start of a uuid is enough if it fits one device.
        fitting = [
            index
            for index, device in enumerate(devices)
            if entry.startswith(_GPU) and (device.uuid or "").startswith(entry)
        ]
        if len(fitting) != 1:
            break
        if fitting[0] in listed:
            return []
        listed += fitting
    return listed


def _with_instances(devices: Sequence[NvmlDevice], names: str) -> Numbering:
    uuids: dict[str, tuple[int, str]] = {}
    for index, device in enumerate(devices):
        for instance in device.instances or ():
            place = index, instance.uuid
            old_name = f"{_MIG}{device.uuid}/{instance.gpu_instance}/{instance.compute_instance}"
            uuids[instance.uuid] = uuids[old_name] = place
    numbers: dict[str, int] = {}
    visible: set[int] = set()
    for entry in names.split(","):
        if entry not in uuids:
            break
        index, uuid = uuids[entry]
        if uuid in numbers:
            numbers.clear()
            visible.clear()
            break
        numbers[uuid] = len(numbers)
        visible.add(index)
    return Numbering(
        devices=(None,) * len(devices),
        instances=numbers,
        is_visible=tuple(index in visible for index in range(len(devices))),
        is_assumed=False,
    )
