"""A mode that tells of calls: on in one thread at a time, gone once it is taken off."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode

from trainprof.probes.function_watch import FunctionWatch

Names = list[str]


@pytest.fixture
def watched() -> tuple[FunctionWatch, Names]:
    names: Names = []

    def sees(name: str, *_: Any) -> None:
        names.append(name)

    watch = FunctionWatch(torch, lambda *_: None, sees, lambda: 0)
    watch.open()
    return watch, names


def test_calls_are_told_of_while_it_is_on(watched: tuple[FunctionWatch, Names]) -> None:
    watch, names = watched
    torch.ones(2)
    assert watch.put_on()
    assert torch.ones(2).add(1).shape == (2,)  # a shape is not told of
    watch.take_off()
    torch.ones(2)
    assert names == ["ones", "add"]
    assert watch.depth() == 0


def test_no_second_thread_gets_it(watched: tuple[FunctionWatch, Names]) -> None:
    watch, names = watched
    assert watch.put_on()
    told = in_another_thread(lambda: (watch.put_on(), watch.is_on_here(), torch.zeros(2)))
    assert told[:2] == (False, False)
    assert watch.is_on_here()
    watch.take_off()
    assert names == []
    assert in_another_thread(lambda: (watch.put_on(), watch.take_off()))[0]


def test_a_forked_process_gets_it_though_another_thread_had_it(
    watched: tuple[FunctionWatch, Names],
) -> None:
    watch, _ = watched
    in_another_thread(watch.put_on)
    watch.begin_anew()
    assert watch.put_on()
    watch.take_off()


def test_a_mode_that_the_script_puts_above_it_stays(watched: tuple[FunctionWatch, Names]) -> None:
    watch, names = watched

    class Scripts(TorchFunctionMode):
        def __torch_function__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            names.append("scripts")
            return func(*args, **(kwargs or {}))

    assert watch.put_on()
    with Scripts():
        watch.take_off()
        torch.ones(2)
        assert watch.depth() == 1
    assert names == ["scripts"]


def in_another_thread(does: Callable[[], Any]) -> Any:
    told: list[Any] = []
    thread = threading.Thread(target=lambda: told.append(does()))
    thread.start()
    thread.join()
    return told[0]
