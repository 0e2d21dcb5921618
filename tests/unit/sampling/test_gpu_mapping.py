"""CUDA_VISIBLE_DEVICES in all its spellings against a list of devices."""

from __future__ import annotations

import pytest

from trainprof.sampling.gpu_mapping import MigInstance, NvmlDevice, numbering

UUIDS = ("GPU-aa11", "GPU-aa22", "GPU-bb33", "GPU-cc44")
FOUR = [NvmlDevice(uuid) for uuid in UUIDS]
INSTANCES = (MigInstance("MIG-one", 1, 0), MigInstance("MIG-two", 2, 0))
DIVIDED = [NvmlDevice("GPU-aa11"), NvmlDevice("GPU-bb33", INSTANCES)]


def numbers(visible, devices=FOUR, **more):
    environ = more if visible is None else {"CUDA_VISIBLE_DEVICES": visible, **more}
    return numbering(devices, environ)


@pytest.mark.parametrize(
    ("visible", "expected"),
    [
        (None, (0, 1, 2, 3)),
        ("0,1,2,3", (0, 1, 2, 3)),
        ("2", (None, None, 0, None)),
        ("3,1", (None, 1, None, 0)),
        (" 1 , 0 ", (1, 0, None, None)),
        ("1gpu2,2ampere", (None, 0, 1, None)),
        ("+2,01", (None, 1, 0, None)),
        # what names no device ends the list
        ("1,-1,2", (None, 0, None, None)),
        ("1,9,2", (None, 0, None, None)),
        ("1,x,2", (None, 0, None, None)),
        ("2,GPU-aa11", (None, None, 0, None)),
        ("", (None,) * 4),
        ("NoDevFiles", (None,) * 4),
        ("9" * 5000, (None,) * 4),
        # a device that is named twice empties it
        ("1,2,1", (None,) * 4),
        ("GPU-bb33,GPU-aa22", (None, 1, 0, None)),
        ("GPU-b,GPU-cc", (None, None, 0, 1)),
        # a beginning that fits several
        ("GPU-bb,GPU-aa,GPU-cc", (None, None, 0, None)),
        ("GPU-bb33,1", (None, None, 0, None)),
        ("GPU-ffff", (None,) * 4),
        ("GPU-b,GPU-bb33", (None,) * 4),
    ],
)
def test_the_scripts_numbers(visible, expected):
    numbered = numbers(visible)
    assert numbered.devices == expected
    assert numbered.is_visible == tuple(number is not None for number in expected)


@pytest.mark.parametrize(
    ("visible", "more", "devices", "is_assumed"),
    [
        (None, {}, FOUR, True),
        ("1,2", {}, FOUR, True),
        ("1,2", {"CUDA_DEVICE_ORDER": "FASTEST_FIRST"}, FOUR, True),
        ("1,2", {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, FOUR, False),
        (None, {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, FOUR, False),
        ("GPU-bb33", {}, FOUR, False),
        ("", {}, FOUR, False),
        (None, {}, FOUR[:1], False),
    ],
)
def test_numbers_are_assumed_where_cuda_may_order_otherwise(visible, more, devices, is_assumed):
    assert numbers(visible, devices, **more).is_assumed is is_assumed


@pytest.mark.parametrize(
    ("visible", "instances", "is_visible"),
    [
        ("MIG-two", {"MIG-two": 0}, (False, True)),
        ("MIG-two,MIG-one", {"MIG-two": 0, "MIG-one": 1}, (False, True)),
        ("MIG-GPU-bb33/2/0", {"MIG-two": 0}, (False, True)),
        ("MIG-three,MIG-one", {}, (False, False)),
        ("MIG-one,0", {"MIG-one": 0}, (False, True)),
        ("MIG-one,MIG-one", {}, (False, False)),
    ],
)
def test_instances_by_name(visible, instances, is_visible):
    numbered = numbers(visible, DIVIDED)
    assert (numbered.instances, numbered.is_visible) == (instances, is_visible)
    assert (numbered.devices, numbered.is_assumed) == ((None, None), False)
    assert numbers("GPU-aa11", DIVIDED).devices == (0, None)  # a whole one beside


@pytest.mark.parametrize("visible", [None, "0", "1"])
def test_which_instance_cuda_takes_is_not_known(visible):
    numbered = numbers(visible, DIVIDED)
    assert (numbered.devices, numbered.is_visible) == ((None, None), (None, None))


def test_a_device_whose_uuid_is_not_told_is_never_meant():
    devices = [NvmlDevice(None), NvmlDevice("GPU-bb33")]
    assert numbers("GPU-", devices).devices == (None, 0)
    assert numbers("1", devices).devices == (None, 0)
