"""Whether a script reads gradients itself."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest

from trainprof.inside.model.parameters import (
    is_read_in,
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
