"""Whose code may have called torch's operators, by the names that its module has."""

from __future__ import annotations

import math
import sys
from types import FrameType, ModuleType
from typing import Any

import numpy
import pytest
import torch
import torch.nn.functional

from trainprof.inside.stacks.sampler import TorchUsers


def frame_of(names: dict[str, Any], does: str = "return here()") -> FrameType:
    """Returns the frame of a function that a module with these names has."""
    scope = {"here": lambda: sys._getframe(1), **names}
    exec(compile(f"def compute(x=None):\n    {does}\n", "/library/loss.py", "exec"), scope)
    found = scope["compute"]()
    assert isinstance(found, FrameType)
    return found


def is_user_of(frame: FrameType) -> bool:
    return TorchUsers().has(frame.f_code, lambda: frame.f_globals)


@pytest.mark.parametrize(
    ("names", "is_user"),
    [
        ({"torch": torch}, True),
        ({"F": torch.nn.functional}, True),
        ({"Tensor": torch.Tensor}, True),
        ({"exp": torch.exp}, True),
        ({"gelu": torch.nn.functional.gelu}, True),
        ({"einsum": torch.einsum}, True),
        ({"float32": torch.float32}, True),
        ({"torchvision": ModuleType("torchvision")}, False),
        ({"np": numpy, "sqrt": math.sqrt, "array": numpy.ones(1)}, False),
        ({}, False),
    ],
)
def test_a_module_that_has_torch_or_a_name_of_its_uses_it(
    names: dict[str, Any], is_user: bool
) -> None:
    assert is_user_of(frame_of(names)) is is_user


@pytest.mark.parametrize(
    ("does", "is_user"),
    [
        ("return here() if True else x.softmax(0)", True),
        ("return here() if True else np.sort(x)", False),
        ("return here() if True else x.numpy()", False),
        ("import numpy; return here()", False),
        ("return here() if True else optimize.root(x)", False),
        ("return here() if True else exp(x)", False),
    ],
)
def test_a_function_that_names_an_array_library_may_compute_with_that(
    does: str, is_user: bool
) -> None:
    names = {"torch": torch, "np": numpy, "optimize": ModuleType("scipy.optimize")}
    assert is_user_of(frame_of({**names, "exp": numpy.exp}, does)) is is_user


@pytest.mark.parametrize(
    ("names", "has_arrays"),
    [
        ({"np": numpy}, True),
        ({"optimize": ModuleType("scipy.optimize")}, True),
        ({"np": numpy, "torch": torch}, False),
        ({"backends": ModuleType("einops")}, False),
        ({}, False),
    ],
)
def test_a_module_that_has_arrays_and_no_torch_computes_with_those(
    names: dict[str, Any], has_arrays: bool
) -> None:
    users, frame = TorchUsers(), frame_of(names)
    assert users.has_arrays(frame.f_code) is False  # nobody has asked about it
    users.has(frame.f_code, lambda: frame.f_globals)
    assert users.has_arrays(frame.f_code) is has_arrays


def test_nothing_of_the_modules_own_runs_for_it() -> None:
    class Meta(type):
        def __getattribute__(cls, name: str) -> Any:
            raise AssertionError(name)

    class Lazy(ModuleType):
        def __getattribute__(self, name: str) -> Any:
            raise AssertionError(name)

    class Odd(metaclass=Meta):
        def __getattribute__(self, name: str) -> Any:
            raise AssertionError(name)

    nameless = ModuleType("nameless")
    del nameless.__name__
    vars(nameless)["__getattr__"] = lambda name: pytest.fail(name)
    odd = {"Odd": Odd, "odd": object.__new__(Odd), "lazy": Lazy("torch"), "nameless": nameless}
    assert is_user_of(frame_of(odd)) is False
    assert is_user_of(frame_of({**odd, "torch": torch})) is True


def test_code_is_judged_once() -> None:
    users, frame = TorchUsers(), frame_of({"torch": torch})
    assert not users.has(frame.f_code, lambda: None)  # it is another's turn by now
    assert users.has(frame.f_code, lambda: frame.f_globals)
    assert users.has(frame.f_code, lambda: pytest.fail("it is known"))
