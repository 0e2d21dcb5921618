"""Being called after an import, without a trace in it."""

from __future__ import annotations

import importlib.util
import sys
import traceback
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

import pytest

from trainprof.inside.start.import_hook import AfterImport

Calls = list[tuple[str, int, int]]


class Surroundings:
    """Tells which modules were executed in it."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.inside: list[str] = []

    def around(self, spec: ModuleSpec) -> AbstractContextManager[None] | None:
        self.asked.append(spec.name)
        return self._run(spec.name) if spec.name.startswith("around_") else None

    @contextmanager
    def _run(self, name: str) -> Iterator[None]:
        self.inside.append(f"+{name}")
        yield
        self.inside.append(f"-{name}")


@pytest.fixture
def calls() -> Calls:
    return []


@pytest.fixture
def hook(calls: Calls, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[AfterImport]:
    def called(module: ModuleType, start: int, end: int) -> None:
        calls.append((module.__name__, start, end))

    monkeypatch.syspath_prepend(str(tmp_path))
    before = list(sys.meta_path)
    made = AfterImport({"waited": called})
    made.install()
    yield made
    made.remove()
    sys.modules.pop("waited", None)
    assert sys.meta_path == before


def test_the_module_is_what_it_would_have_been(
    hook: AfterImport, calls: Calls, tmp_path: Path
) -> None:
    (tmp_path / "waited.py").write_text("spec = __spec__\nvalue = 1\n")
    import waited  # type: ignore[import-not-found]

    [(name, start, end)] = calls
    assert (name, waited.value) == ("waited", 1)
    assert start < end
    plain = importlib.util.spec_from_file_location("waited", waited.__file__)
    assert plain is not None
    for ours, other in ((waited.__loader__, plain.loader), (waited.__spec__, plain)):
        assert type(ours) is type(other)
        assert vars(ours).keys() - {"_initializing"} == vars(other).keys()
    assert type(waited) is ModuleType
    assert hook not in sys.meta_path


def test_a_failing_import_looks_the_same_and_may_be_repeated(
    hook: AfterImport, calls: Calls, tmp_path: Path
) -> None:
    def tried() -> str:
        importlib.invalidate_caches()
        try:
            import waited  # noqa: F401
        except (ModuleNotFoundError, ZeroDivisionError):
            return traceback.format_exc()
        return ""

    for text in (None, "import json\n1 / 0\n"):
        if text is not None:
            (tmp_path / "waited.py").write_text(text)
        with_us = tried()
        hook.remove()
        assert tried() == with_us != ""
        hook.install()
        assert calls == []
    (tmp_path / "waited.py").write_text("value = 22222222\n")
    assert tried() == ""
    assert [name for name, _, _ in calls] == ["waited"]


def test_looking_for_a_module_is_no_import(hook: AfterImport, calls: Calls, tmp_path: Path) -> None:
    (tmp_path / "waited.py").write_text("")
    assert importlib.util.find_spec("waited") is not None
    assert calls == []
    assert hook in sys.meta_path
    import waited  # noqa: F401

    assert len(calls) == 1


def test_what_was_imported_before_is_called_at_once(calls: Calls) -> None:
    before = list(sys.meta_path)
    AfterImport({"json": lambda module, start, end: calls.append((module.__name__, start, end))})
    AfterImport({"sys": lambda m, start, end: calls.append((m.__name__, start, end))}).install()
    assert [name for name, _, _ in calls] == ["sys"]
    assert sys.meta_path == before


def test_modules_are_executed_in_what_is_asked_for(
    calls: Calls, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both kinds of waiting share one loader."""
    monkeypatch.syspath_prepend(str(tmp_path))
    texts = {"around_outer": "import around_inner, bare", "around_inner": "", "bare": "value = 1"}
    for name, text in texts.items():
        (tmp_path / f"{name}.py").write_text(text)
    surroundings = Surroundings()

    def called(module: ModuleType, start: int, end: int) -> None:
        calls.append((module.__name__, start, end))

    hook = AfterImport({"around_inner": called}, surroundings.around)
    hook.install()
    try:
        import around_outer  # type: ignore[import-not-found]
    finally:
        hook.remove()
        for name in texts:
            sys.modules.pop(name, None)
    assert surroundings.asked == ["around_outer", "around_inner", "bare"]
    assert surroundings.inside == [
        f"{sign}around_{name}"
        for sign, name in (("+", "outer"), ("+", "inner"), ("-", "inner"), ("-", "outer"))
    ]
    assert [name for name, _, _ in calls] == ["around_inner"]
    assert "exec_module" not in vars(around_outer.__loader__)
    assert around_outer.bare.value == 1
