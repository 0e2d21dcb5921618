"""Loops as people write them: scripts that time one place themselves, and what is true of them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from support.machine import attempts

ROOT = Path(__file__).parents[2]
DEADLINE_S = 300.0
TRAINPROF = (sys.executable, "-m", "trainprof", "run", "-q")

# At its first step an optimizer imports torch's compiler, and torch itself imports what only its
# compiler asks: two seconds of processor time in each of several hundred scripts. Here they get a
# compiler that compiles nothing, and no kernels for tensors without data, whose import would make
# generators ready too; nor is garbage collected meanwhile, a fifth of the import. In one line, so
# that the others keep their numbers.
_WITHOUT_COMPILER = """
import gc, sys
gc.disable()
sys.modules["torch._meta_registrations"] = type(sys)("torch._meta_registrations")
import torch
if hasattr(torch._C, "_set_generator_metaclass"):
    from torch._opaque_base import OpaqueBaseMeta
    torch._C._set_generator_metaclass(OpaqueBaseMeta)
sys.modules["torch._dynamo"] = torch._dynamo = type("NoCompiler", (), {
    "graph_break": lambda: None,
    "disable": lambda function, *how, **more: function,
})
gc.freeze()
gc.enable()
"""
IMPORT_TORCH = f"exec({_WITHOUT_COMPILER!r})\n"


def without_compiler(script: str) -> str:
    """The script, line by line the same, except that torch's compiler is not there."""
    return re.sub(r"^import torch\n", lambda _: IMPORT_TORCH, script, count=1, flags=re.MULTILINE)


WITH_COMPILER = """
import gc, json, time, warnings
from collections import Counter
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

truth, counts = Counter(), Counter()
collected = [0.0]  # seconds in the garbage collector, which the ledger holds apart in training

def on_collection(phase, info):
    collected[0] += time.perf_counter() * (1 if phase == "stop" else -1)

gc.callbacks.append(on_collection)

class timed:
    def __init__(self, name):
        # Evaluation has collections in it, as the ledger counts it.
        self.name, self.apart = name, [0.0] if name.startswith("evaluation") else collected

    def __enter__(self):
        self.started = time.perf_counter() - self.apart[0]

    def __exit__(self, *exception):
        truth[self.name] += time.perf_counter() - self.apart[0] - self.started
        counts[self.name] += 1

class Slow(nn.Module):  # sleeps in its forward
    def __init__(self, s):
        super().__init__()
        self.s = s

    def forward(self, x):
        time.sleep(self.s)
        return x

def make_model(s=0.004):
    return nn.Sequential(nn.Linear(8, 8), Slow(s), nn.Linear(8, 1))

def make_loader(batches=6, **options):
    return DataLoader(TensorDataset(torch.randn(4 * batches, 8), torch.randn(4 * batches, 1)),
                      batch_size=4, **options)

def fresh():
    model = make_model()
    return model, torch.optim.SGD(model.parameters(), lr=0.01)

def learn(model, optimizer, x, y):
    with timed("forward"):
        p = model(x)
    optimizer.zero_grad(); mse(p, y).backward(); optimizer.step()

def tell():
    print(json.dumps({"seconds": truth, "counts": counts}))

torch.manual_seed(0)
torch.set_num_threads(1)
mse = nn.MSELoss()
"""
PREAMBLE = without_compiler(WITH_COMPILER)

ONCE_S = 1e-3


@dataclass(frozen=True)
class Style:
    """A script and what is true of it.

    Attributes:
        key: Of the ledger, whose seconds are those of the same name in the script's truth; None:
            nothing is timed.
        source: Of the steps.
        roles: Of the loaders, in order of their lines.
        without: Ledger keys that must be 0.
        also: Further ledger keys compared with the script's truth, where it tells them.
        passes: (steps, iterations) of each training pass; (): not looked at.
    """

    script: str
    steps: int
    iterations: int
    epochs: int
    evaluated: int = 0
    key: str | None = "forward"
    source: str = "optimizer"
    roles: tuple[str, ...] = ("training",)
    without: tuple[str, ...] = field(default=("evaluation",))
    also: tuple[str, ...] = ("recompute",)
    passes: tuple[tuple[int, int], ...] = ()

    def each_pass(self) -> tuple[tuple[int, int], ...]:
        """Returns what is true of its training passes; where that is not said they are alike."""
        if self.passes or not self.epochs:
            return self.passes
        assert self.steps % self.epochs == self.iterations % self.epochs == 0
        return ((self.steps // self.epochs, self.iterations // self.epochs),) * self.epochs


def one_after_the_other(*styles: Style) -> Style:
    """Makes one style of several: a process that imports torch costs more than most of them.

    What is true of each is asserted still: of its passes by themselves, of its costs in their sum.
    The styles time the same, have the same source of steps, and lack the same.
    """
    first, *others = styles
    if not others:
        return first
    for other in others:
        assert (other.key, other.source, other.also) == (first.key, first.source, first.also)
        assert set(other.without) == set(first.without)
    return replace(
        first,
        script="\n".join(style.script for style in styles),
        steps=sum(style.steps for style in styles),
        iterations=sum(style.iterations for style in styles),
        epochs=sum(style.epochs for style in styles),
        evaluated=sum(style.evaluated for style in styles),
        roles=tuple(dict.fromkeys(role for style in styles for role in style.roles)),
        passes=tuple(epoch for style in styles for epoch in style.each_pass()),
    )


def styles_in(section: str, text: str, **usual: Any) -> list[Any]:
    """Returns a test's parameters: the styles of a text, those of one process made one.

    A line `# ====` begins a process, and `# ---- NAME | COUNTS | FIELDS` a style: its counts in the
    order of `Style`, and others of its fields: `key=evaluation roles=training,evaluation`.
    """
    parameters = []
    for process in text.split("# ====\n")[1:]:
        styles = dict(_named_style(part, usual) for part in process.split("# ---- ")[1:])
        marks = [pytest.mark.proves(section, name) for name in styles]
        style = one_after_the_other(*styles.values())
        parameters.append(pytest.param(style, id=" + ".join(styles), marks=marks))
    return parameters


def _named_style(text: str, usual: Mapping[str, Any]) -> tuple[str, Style]:
    header, script = text.split("\n", 1)
    name, counts, *written = header.split(" | ")
    fields: dict[str, Any] = dict(usual)
    for field_name, _, value in (word.partition("=") for word in " ".join(written).split()):
        values = tuple(value.split(",")) if value else ()
        if field_name in ("key", "source"):
            fields[field_name] = value or None
        elif field_name == "passes":
            fields[field_name] = tuple(tuple(map(int, epoch.split("/"))) for epoch in values)
        else:
            fields[field_name] = values
    return name, Style(script, *map(int, counts.split()), **fields)


def prove(style: Style, tmp_path: Path, *, preamble: str = PREAMBLE) -> dict[str, Any]:
    """Runs the style under trainprof, asserts what is true of it, and returns the summary.

    Costs that miss are measured again: the scheduler may take the processor away between the
    script's clock and ours. What is measured wrong misses every time.
    """
    script = preamble + style.script + "\ntell()\n"
    for attempt in attempts():
        summary, truth = profile(tmp_path, script, run=f"run-{attempt}" if attempt else "run")
        check_counts(style, summary)
        missed = missed_costs(style, summary, truth)
        if not missed:
            break
    assert not missed, missed
    return summary


def profile(
    tmp_path: Path,
    script: str,
    *,
    run: str = "run",
    options: Sequence[str] = (),
    arguments: Sequence[str] = (),
    env: dict[str, str] | None = None,
    enter: Path | None = None,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Runs `script` under trainprof; returns its summary, and its last line of stdout as JSON.

    With `enter`, in the control group whose cgroup.procs that is.
    """
    launcher = [*TRAINPROF, "-o", run, *options]
    if enter is not None:
        launcher = ["sh", "-c", f'echo $$ > "{enter}" && exec "$@"', "sh", *launcher]
    shown = output(launcher, tmp_path, script, arguments=arguments, env=env)
    summary = json.loads((tmp_path / run / "summary.json").read_text())
    return summary, json.loads(shown.splitlines()[-1])


def output(
    launcher: Sequence[str],
    directory: Path,
    script: str,
    *,
    arguments: Sequence[str] = (),
    env: dict[str, str] | None = None,
) -> str:
    """Writes `script` to the directory, runs it there to its end, and returns its stdout."""
    path = directory / "script.py"
    path.write_text(script)
    done = subprocess.run(
        [*launcher, path.name, *arguments],
        cwd=directory,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), **(env or {})},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def check_counts(style: Style, summary: dict[str, Any]) -> None:
    """Asserts counts, loaders' roles, and that the ledger closes."""
    training, ledger = summary["training"], summary["ledger"]
    shown = {key: training[key] for key in ("steps", "iterations", "epochs", "step_source")}
    assert summary["faults"] == []
    assert shown | {"evaluated": summary["evaluation"]["iterations"]} == {
        "steps": style.steps,
        "iterations": style.iterations,
        "epochs": style.epochs,
        "step_source": style.source,
        "evaluated": style.evaluated,
    }
    loaders = sorted(summary["loaders"], key=lambda loader: loader["id"])
    assert tuple(dict.fromkeys(loader["role"] for loader in loaders)) == style.roles
    assert sum(ledger["seconds"].values()) == pytest.approx(ledger["wall_s"], rel=0.005)
    for key in style.without:
        assert ledger["seconds"][key] == 0
    if style.passes:
        epochs = [epoch for epoch in summary["epochs"] if epoch["stage"] == "training"]
        assert tuple((epoch["steps"], epoch["iterations"]) for epoch in epochs) == style.passes


def missed_costs(
    style: Style, summary: dict[str, Any], truth: dict[str, Any]
) -> dict[str, tuple[float, float]]:
    """Returns what the ledger says and what is true, where these differ."""
    missed = {}
    # They come after a call, inside what the script times, and the summary tells what they took.
    looks_s = summary.get("overhead", {}).get("looks_s") or 0.0
    for key in {style.key, *style.also} & truth["seconds"].keys():
        shown, seconds = summary["ledger"]["seconds"][key], truth["seconds"][key]
        # These runs have a handful of steps: what is paid once, when a class or a line is first
        # met and named in the log, shows in them.
        slack_s = max(0.02 * seconds, 100e-6 * truth["counts"][key]) + ONCE_S + looks_s
        if abs(shown - seconds) > slack_s:
            missed[key] = (shown, seconds)
    return missed
