"""What every test may use."""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Generator, Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

pytest.register_assert_rewrite("support")

from support.machine import MACHINE, SUMMARIES  # noqa: E402

GOLDEN = Path(__file__).parent / "golden"
# A property of tests that had to have the machine to themselves: how often.
ALONE = "alone"

# torch's threads spin while they wait for one another: where tests run side by side they would take
# the cores from those of the other test. Of tests' processes, too, before any imports torch.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")


def _expect_signals() -> None:
    """Gives the tests' processes default signal handling, under `nohup` and in the background too.

    A child inherits that a signal is ignored, but not that it is caught. So pytest catches the
    signals that it was started to ignore, and goes on ignoring them.
    """
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, lambda *_: None)


_expect_signals()

# pytest-xdist's processes are a `python -c`, whose text no test's is.
if sys.argv[:1] == ["-c"]:
    sys.argv[0] = "pytest"

_PR_SET_PDEATHSIG = 1  # Linux
_prctl = getattr(ctypes.CDLL(None), "prctl", lambda *_: 0)
# A forked child that hangs would hold xdist's pipe open beyond the end of its parent.
os.register_at_fork(after_in_child=lambda: _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden",
        action="store_true",
        help="write what the tests got to tests/golden; read the difference before committing it",
    )
    parser.addoption(
        "--update-docs",
        action="store_true",
        help="write what README and docs/ take from the package, its golden pages and its tests",
    )


def pytest_collection_finish(session: pytest.Session) -> None:
    """Keeps torch and the tests out of later garbage collections: 5 % of the CPU time."""
    gc.collect()
    gc.freeze()
    if session.config.getoption("--update-docs"):
        from support import docs

        docs.update(session.items if docs.is_whole(session.config) else None)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skips a test whose framework is not installed, and those that take minutes unless chosen."""
    if item.get_closest_marker("truth") and not item.config.getoption("markexpr"):
        pytest.skip("takes minutes: pytest -m truth")
    for package in _frameworks_of(item):
        if find_spec(package) is None:
            pytest.skip(f"{package} is not installed")


def _frameworks_of(item: pytest.Item) -> Iterator[str]:
    for mark in item.iter_markers("frameworks"):
        yield from mark.args


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol() -> Generator[None, object, object]:
    with MACHINE.shared():
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    before = MACHINE.times_alone
    try:
        return (yield)
    finally:
        if MACHINE.times_alone > before:
            item.user_properties.append((ALONE, MACHINE.times_alone - before))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Names tests that kept the machine from the others: they are what makes a run long.

    And says how many summaries were checked for contradictions.
    """
    reports = [x for reports in terminalreporter.stats.values() for x in reports]
    properties = [x.user_properties for x in reports if getattr(x, "when", "") == "teardown"]
    checked = sum(dict(named).get(SUMMARIES, 0) for named in properties)
    if checked:
        terminalreporter.write_line(f"{checked} summaries checked for contradictions")
    for report in terminalreporter.getreports("passed"):
        times = dict(report.user_properties).get(ALONE)
        if times and report.when == "call":
            took = f"{report.duration:.0f} s"
            terminalreporter.write_line(
                f"measured {times} times more, alone: {report.nodeid}, {took}"
            )


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """Compares a text with the file of that name in tests/golden."""

    def compare(name: str, text: str) -> None:
        path = GOLDEN / name
        if request.config.getoption("--update-golden"):
            path.write_text(text, encoding="utf-8")
        assert path.exists(), f"{name} is missing: run pytest --update-golden and read it"
        assert text == path.read_text(encoding="utf-8")

    return compare


@pytest.fixture
def outside() -> Iterator[Path]:
    """A directory that the sandbox of a trial leaves as it is."""
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="trainprof-tests-") as directory:
        yield Path(directory)
