"""Which hooks on modules are told of."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.session import Recorder
from torch import nn
from torch.nn.modules.module import register_module_forward_hook

from trainprof.probes.forward import ForwardProbe
from trainprof.probes.module_hooks import hooks_of
from trainprof.record.schema import Topic

SEEN: list[Any] = []


def looks_on(module: Any, args: Any, output: Any) -> None:
    if output is None:
        return
    if args:
        SEEN.append(output)


def changes(module: Any, args: Any, output: Any) -> Any:
    return output * 2


def changes_some(module: Any, args: Any, output: Any) -> Any:
    if args:
        return None
    return output


def masks(module: Any, args: Any, output: torch.Tensor) -> None:
    output.mul_(0.5)


def keeps(module: Any, args: Any, output: torch.Tensor) -> None:
    module.last = output.detach()


def sets_weight(module: Any, args: Any) -> None:
    setattr(module, "weight", module.weight_orig * 2)  # noqa: B010


def named(name: str, module: Any, args: Any, output: Any) -> None:
    SEEN.append(name)


class Watcher:
    def look(self, module: Any, args: Any, output: Any) -> None:
        SEEN.append(module)

    def __call__(self, module: Any, args: Any, output: Any) -> None:
        SEEN.append(output)


def lines_of(module: nn.Module) -> list[tuple[str, int]]:
    found = hooks_of(module, lambda code: True)
    return [(code.co_name, last - code.co_firstlineno) for code, last in found]


@pytest.mark.parametrize(
    ("hook", "expected"),
    [
        (looks_on, [("looks_on", 4)]),
        (functools.partial(functools.partial(named), "a"), [("named", 1)]),
        (Watcher().look, [("look", 1)]),
        (Watcher(), [("__call__", 1)]),
        (lambda *args: SEEN.append(args), [("<lambda>", 0)]),
        (keeps, [("keeps", 1)]),
        (changes, []),
        (changes_some, []),
        (masks, []),
        (print, []),
    ],
)
def test_functions_that_only_look_on(
    hook: Callable[..., Any], expected: list[tuple[str, int]]
) -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.ReLU()))
    assert lines_of(model) == []
    model[1][0].register_forward_hook(hook)
    model[0].register_forward_hook(hook)
    assert lines_of(model) == expected


@torch.no_grad()
def quietly(module: Any, args: Any, output: Any) -> None:
    SEEN.append(output.mean())


def test_a_hook_that_a_decorator_of_torchs_wraps_is_the_users() -> None:
    model = nn.Linear(2, 2)
    model.register_forward_hook(quietly)
    [(code, last)] = hooks_of(model, lambda code: code.co_filename == __file__)
    assert (code.co_name, last - code.co_firstlineno) == ("quietly", 2)


def test_a_hook_that_sets_what_a_module_computes_with_is_a_part_of_it() -> None:
    """As of an equalized learning rate, or a normalized weight."""
    module = nn.Linear(2, 2)
    module.register_forward_pre_hook(sets_weight)
    assert lines_of(module) == []


def test_hooks_ahead_of_a_module_and_those_on_all_modules() -> None:
    model = nn.Linear(2, 2)
    model.register_forward_pre_hook(lambda module, args: None)
    handle = register_module_forward_hook(looks_on)
    try:
        assert [name for name, _ in lines_of(model)] == ["looks_on", "<lambda>"]
    finally:
        handle.remove()


def test_a_function_on_many_modules_is_noted_once_and_a_librarys_is_not(
    recorder: Recorder,
) -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    for module in model:
        module.register_forward_hook(looks_on)
    nn.utils.parametrizations.weight_norm(model[0])
    recorder.start(ForwardProbe())
    for _ in range(3):
        model(torch.ones(1, 2))
    recording = recorder.read()
    [note] = [x for x in recording.notes(Topic.ENVIRONMENT) if "module_hook" in x]
    file, first, name = json.loads(recording.texts[note["module_hook"]][1])
    assert file.endswith("test_module_hooks.py")
    assert (name, note["last_line"]) == ("looks_on", first + 4)
    assert recording.notes(Topic.PROBE_FAILED) == []
