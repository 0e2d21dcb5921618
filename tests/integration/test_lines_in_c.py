"""C code is told from Python code within lines, against shares that the script measures itself."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.lines import LinesRun, time_lines, time_lines_alone

from trainprof.probes.line_native import OTHER_THREADS, PERIOD_NS, why_not_here
from trainprof.record.schema import Kind, Topic

pytestmark = pytest.mark.skipif(why_not_here() is not None, reason="not told here")

PLANTED = """
import json, os, random, time
import torch

torch.set_num_threads(1)
numbers = [random.random() for _ in range(110_000)]
matrices = torch.randn(1, 900, 900)
took = []
for _ in range(5):  # the first ones take longer
    started = time.perf_counter()
    matrices @ matrices
    took.append(time.perf_counter() - started)
matrices = torch.randn(1 + int(0.04 / min(took)), 900, 900)
in_c = {}

def counting(seconds):
    end, x = time.perf_counter() + seconds, 0
    while time.perf_counter() < end:
        for i in range(30):
            x += i * i

def often_letting_go(seconds):
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        counting(0.0001)
        of_c("short", os.stat, ".")

def of_c(name, function, *arguments):
    start = time.perf_counter()
    function(*arguments)
    in_c[name] = in_c.get(name, 0) + time.perf_counter() - start

@profile
def work():
    counting(0.03)
    often_letting_go(0.03)
    time.sleep(0.03)
    sorted(numbers); sorted(numbers)
    matrices @ matrices
    counting(0.02); of_c("half", time.sleep, 0.02)
    counting(0.05); of_c("some", sorted, numbers)

for _ in range(35):
    work()
print(json.dumps(in_c))
"""


def looks(run: LinesRun) -> dict[int, tuple[int, int]]:
    """Returns line to (looks, those in C code) of all processes."""
    found: dict[int, tuple[int, int]] = {}
    for log, _ in run.processes:
        last = {}
        for record in log.details[log.details["kind"] == Kind.LINE_LOOKS]:
            last[int(record["thread"])] = (
                int(record["value"]),
                int(record["end"] - record["start"]),
            )
        for line, (met, in_c) in last.items():
            before = found.get(line, (0, 0))
            found[line] = (before[0] + met, before[1] + in_c)
    return found


def test_c_code_is_told_from_python_code_whether_it_keeps_the_gil_or_not(tmp_path: Path) -> None:
    run = time_lines_alone(tmp_path, PLANTED)
    line_of = {text.strip(): at for at, text in enumerate(PLANTED.split("\n"), 1)}
    met = looks(run)

    def share(text: str) -> float:
        (line,) = (at for one, at in line_of.items() if one.startswith(text))
        count, in_c = met[line]
        assert count >= 15
        return in_c / count

    assert share("counting(0.03)") < 0.3
    # Hardly ever met there, as it always has the GIL again; which is not taken for the next line.
    rows = run.script.rows["work"]
    asleep = line_of["time.sleep(0.03)"]
    assert met[asleep][0] < 1.4 * rows[asleep][1] / PERIOD_NS
    assert share("time.sleep(0.03)") > 0.7
    assert share("sorted(numbers); sorted") > 0.7
    assert share("matrices @ matrices") > 0.7

    planted = json.loads(run.stdout.splitlines()[-1])
    for text, name in (
        ("counting(0.02)", "half"),
        ("counting(0.05)", "some"),
    ):
        (line,) = (at for one, at in line_of.items() if one.startswith(text))
        truth = planted[name] / (rows[line][1] * 1e-9)
        assert abs(share(text) - truth) < 0.35  # of some 50 looks


DECORATED = """
import builtins
if not hasattr(builtins, "profile"):
    builtins.profile = lambda function: function
"""

GUEST = """
import os, signal, sys, threading, time

@profile
def work():
    end = time.perf_counter() + 0.2
    while time.perf_counter() < end:
        pass

work(); work()
print(sys.getswitchinterval(), [thread.name for thread in threading.enumerate()])
sys.setswitchinterval(0.01)
print(sys.getswitchinterval())
sys.stdout.flush()
if os.fork() == 0:
    print(sys.getswitchinterval(), threading.active_count())
    sys.stdout.flush()
    os._exit(0)
os.wait()
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
for _ in range(20):
    os.kill(os.getpid(), signal.SIGUSR1)
    print(signal.sigwait([signal.SIGUSR1]))
work()
sys.stdout.flush()
END
"""


@pytest.mark.parametrize("end", ["sys.exit(3)", "os._exit(4)", "raise KeyError"])
def test_a_script_does_not_notice_the_thread_that_looks(tmp_path: Path, end: str) -> None:
    run = time_lines(tmp_path, DECORATED + GUEST.replace("END", end))
    assert looks(run) or end.startswith("os._exit")


BUSY = """
import threading, time

def counting(seconds):
    end, x = time.perf_counter() + seconds, 0
    while time.perf_counter() < end:
        for i in range(30):
            x += i * i

@profile
def work():
    counting(0.1)

other = threading.Thread(target=counting, args=(2,))
other.start()
for _ in range(20):
    work()
other.join()
"""


def test_where_other_threads_run_python_code_c_code_is_not_told(tmp_path: Path) -> None:
    run = time_lines(tmp_path, DECORATED + BUSY)
    assert {"line_looks_unavailable": OTHER_THREADS} in run.notes(Topic.ENVIRONMENT)


IN_WORKERS = """
import time
from torch.utils.data import DataLoader, Dataset

class Numbers(Dataset):
    def __len__(self):
        return 50

    def __getitem__(self, index):
        time.sleep(0.02)
        return index

for _ in DataLoader(Numbers(), num_workers=2):
    pass
"""


def test_lines_of_workers_are_looked_at_too(tmp_path: Path) -> None:
    run = time_lines_alone(tmp_path, IN_WORKERS)
    (line,) = (at for at, text in enumerate(IN_WORKERS.split("\n"), 1) if "sleep" in text)
    met, in_c = looks(run)[line]
    assert met >= 10
    assert in_c > 0.7 * met
