"""The user's hottest lines against what the script timed: each share lies in its interval."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from support.machine import attempts
from support.styles import profile, without_compiler

from trainprof.analysis.charts.charts import charts_of
from trainprof.analysis.stacks.hot_lines import TRAINING_THREAD
from trainprof.analysis.summary.charts import MET_LATE, UNKNOWN_LINE
from trainprof.record.run_directory import RunDirectory

# Of each step: Python, C code that holds the GIL, an operator that lets go of it, a hook in
# backward, and a batch that sleeps. Python runs for longer than the interpreter's switch interval
# of 5 ms on any machine: what ends earlier is only ever met late.
SCRIPT = without_compiler("""
import json, sys, time
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

torch.set_num_threads(1)
spent = dict.fromkeys(("python", "holds", "operator", "hook", "fetch"), 0.0)
line = {}
clock = time.perf_counter

def timed(function):
    def run(*arguments):
        begin = clock()
        try:
            return function(*arguments)
        finally:
            spent[function.__name__] += clock() - begin
    return run

class Data(Dataset):
    def __len__(self):
        return 1600

    def __getitem__(self, index):
        begin = clock()
        time.sleep(0.001)
        spent["fetch"] += clock() - begin
        return torch.ones(8)

@timed
def python():
    total = 0
    for number in range(300_000): total += number
    return total

@timed
def holds():
    return sum(range(1_000_000))

@timed
def operator():
    return square @ square

@timed
def hook(gradient):
    total = 0
    for number in range(400_000): total += number

square = torch.randn(600, 600)
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.001)
for step, batch in enumerate(DataLoader(Data(), batch_size=8)):
    if step == 30:
        begin = clock()
        spent.update(dict.fromkeys(spent, 0.0))
    python()
    holds()
    operator()
    loss = model(batch).sum()
    loss.register_hook(hook)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
whole = clock() - begin
print(json.dumps({name: seconds / whole for name, seconds in spent.items()}))
""")
FUNCTIONS = {"fetch": "__getitem__"}


def flame_share(run: Path, function: str) -> tuple[float, float]:
    """A function's least and greatest share of the loop in the flame graph."""
    charts = charts_of(RunDirectory(run))
    assert charts is not None
    phases, known = Counter[str](), Counter[str]()
    late = Counter[str]()
    for thread, phase, _, numbers, seconds in charts.stacks.stacks:
        if thread == TRAINING_THREAD and phase not in ("startup", "shutdown"):
            names = [charts.stacks.frames[number][0] for number in numbers]
            phases[phase] += seconds
            if names[-1] in (MET_LATE, UNKNOWN_LINE):
                late[phase] += seconds
            elif function in names:
                known[phase] += seconds
    total = phases.total()
    return known.total() / total, sum(known[x] + late[x] for x in known) / total


@pytest.mark.proves("Stack samples", "shares of the hottest lines lie in their intervals")
def test_shares_lie_in_their_intervals(tmp_path: Path) -> None:
    for attempt in attempts():
        directory = tmp_path / str(attempt)
        directory.mkdir()
        summary, planted = profile(directory, SCRIPT)
        wrong = {}
        for name, share in planted.items():
            function = FUNCTIONS.get(name, name)
            lines = [x for x in summary["hot_lines"] if x["function"] == function]
            low, high = (sum(line["share"][end] for line in lines) for end in (0, 1))
            for least, most in (
                (low, high),
                flame_share(directory / "run", function),
            ):
                if not least - 0.05 <= share <= most + 0.05:
                    wrong[name] = share, least, most
        if not wrong:
            break
    assert not wrong
    parts = {line["function"]: line["part"] for line in summary["hot_lines"]}
    assert parts["holds"] == "other"
    assert parts["__getitem__"] == "data_wait"
    assert parts.get("hook", "backward") == "backward"


# A sample is unpacked and packed: both let go of the GIL, and are met as often as they last. The
# first takes three quarters of it or more on any processor: both are of one library, in C.
TWO_LINES = without_compiler("""
import io, json, random, time, zipfile, zlib
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

torch.set_num_threads(1)
clock = time.perf_counter
spent = dict.fromkeys(("unpack", "pack"), 0.0)

class Data(Dataset):
    def __init__(self):
        self.memory = io.BytesIO()
        self.archive = zipfile.ZipFile(self.memory, "w", zipfile.ZIP_DEFLATED)
        self.archive.writestr("x", bytes(random.Random(0).choices(range(16), k=60_000)))
        self.text = bytes(24_000)

    def __len__(self):
        return 18000

    def __getitem__(self, index):
        begin = clock()
        self.archive.read("x")
        between = clock()
        zlib.compress(self.text)
        spent["unpack"] += between - begin
        spent["pack"] += clock() - between
        return torch.ones(8)

model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.001)
begin = clock()
for batch in DataLoader(Data(), batch_size=96):
    loss = model(batch).sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
whole = sum(spent.values())
print(json.dumps({name: seconds / whole for name, seconds in spent.items()}))
""")


def test_a_function_of_two_slow_lines_has_both_and_what_they_call(tmp_path: Path) -> None:
    texts = [text.strip() for text in TWO_LINES.splitlines()]
    lines = {"unpack": 'self.archive.read("x")', "pack": "zlib.compress(self.text)"}
    at = {name: 1 + texts.index(text) for name, text in lines.items()}
    for attempt in attempts():
        directory = tmp_path / str(attempt)
        directory.mkdir()
        summary, planted = profile(directory, TWO_LINES)
        line = summary["loaders"][0]["hot_lines"][0]
        shares = {line["site"]: line["line_share"], **line["other_lines"]}
        met = {name: shares.get(f"script.py:{number}", 0.0) for name, number in at.items()}
        seen = {name: share / sum(met.values()) for name, share in met.items()}
        if seen == pytest.approx(planted, abs=0.15):
            break
    assert seen == pytest.approx(planted, abs=0.15)
    assert (line["function"], line["site"]) == ("__getitem__", f"script.py:{at['unpack']}")
    assert line["library_call"] == "zipfile (ZipFile.read)"
