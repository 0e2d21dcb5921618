"""Whether a script reads gradients itself."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest

from trainprof.probes.gradient_reads import (
    accumulates_by_hand,
    is_read_in,
    is_written_in,
    reads_gradients,
)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("fisher += p.grad.detach() ** 2", True),
        ("norms = [p.grad.norm() for p in ps]", True),
        ("if p.grad == 0:", True),
        ("g = getattr(p, 'grad')", True),
        ("p.grad = None", False),
        ("p.grad.zero_()", False),
        ("p.grad.detach_()", False),
        ("if p.grad is not None:", False),
        ("with torch.no_grad():", False),
        ("p.requires_grad_(False)", False),
        ("g, = torch.autograd.grad(y, x)", False),
        ("f = torch.func.grad(g)", False),
        ("optimizer.zero_grad()  # and p.grad.norm()", False),
    ],
)
def test_lines(line: str, expected: bool) -> None:
    assert is_read_in(f"import torch\n{line}\n") is expected


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("net.gate.grad.zero_()", True),
        ("net.gate.grad.data.zero_()", True),
        ("p.grad.detach_().zero_()", True),
        ("p.grad = None", False),  # another gradient lies elsewhere
        ("optimizer.zero_grad()  # p.grad.zero_()", False),
        ("x.zero_()", False),
    ],
)
def test_lines_that_write(line: str, expected: bool) -> None:
    assert is_written_in(f"import torch\n{line}\n") is expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("score = gate.grad.abs()\ngate.grad.zero_()\n", True),
        ("score = gate.grad.abs()\n", False),
        ("p.grad.zero_()\n", False),
    ],
)
def test_gradients_that_add_up_by_hand(
    text: str, expected: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, path = ModuleType("pruning"), tmp_path / "pruning.py"
    module.__file__ = str(path)
    path.write_text(text)
    monkeypatch.setattr("sys.modules", {"pruning": module, "kept_out": None})
    assert accumulates_by_hand(lambda name: name == str(path)) is expected


def test_the_users_files_alone_are_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def loaded(name: str, text: str | None) -> None:
        module, path = ModuleType(name), tmp_path / f"{name}.py"
        module.__file__ = str(path)
        if text is not None:
            path.write_text(text)
        monkeypatch.setitem(__import__("sys").modules, name, module)

    def asked() -> bool:
        return reads_gradients(lambda path: path.startswith(str(tmp_path)))

    loaded("planted_one", "p.grad = None\n")
    assert not asked()
    assert reads_gradients(lambda path: path == __file__)
    loaded("planted_two", "x = p.grad.norm()\n")
    assert asked()
    loaded("planted_two", "")
    assert not asked()
    loaded("planted_three", None)  # gone meanwhile
    assert asked()
