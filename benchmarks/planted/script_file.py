"""Planted scripts as files: what is drawn of each, what is true of it, and the parts it has.

A file's docstring says what is planted, then what is true of it, a line each:

    expect: SLUG [@ any line]   the finding that has to come first; without it there must be none
    planted: TEXT               the fault's size, with drawn values in braces
    gain: EXPRESSION            how many times as fast training would be without the fault
    beside: PROGRAM             Python code that runs concurrently

Statements up to the first marker are run to draw its sizes, in this order: a seed's script is the
same each time. Behind it the parts of the script stand as they are, with the drawn names in
capitals put in; those that are only there for some draws end in `if EXPRESSION`. Where a finding
has to point, a line ends in `# here`.

    # -- imports, definitions, setup   of the script itself
    # -- data                          what the loader needs
    # -- each batch, each step, each epoch   ahead of the forward, after an update, after an epoch
    # -- forward and backward        in place of the usual
    # -- built                         loader, model, optimizer, ...: a part of `Parts` each line
    # -- script                        all of it but the imports
"""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from planted.styles import EVERYWHERE, MAIN, WITH_GUARD, Parts, script

BENCHMARKS = Path(__file__).parents[1]
_MARKER = re.compile(r"^# -- ([a-z ]+?)(?: if (.+))?\n", re.MULTILINE)
_BUILT = re.compile(r"^(\w+) = ", re.MULTILINE)
HERE = "# here"
# What a step takes besides what is planted, and the IPC transfer of a worker's batch.
STEPPING_S, HANDING_OVER_S = 0.001, 0.003
# Epochs, of 60 to 120 steps in all.
PASSES = (2, 3, 4)


@dataclass(frozen=True)
class PlantedScript:
    """A script, and what is true of it.

    Attributes:
        name: Of its file.
        size: Of what is planted, in words.
        style: How the script is written.
        files: Text by name; MAIN is run.
        finding: Id of the finding that has to come first; None where there must be none.
        no_line: The finding need not name a line.
        gain: How many times as fast training would be without the fault, by construction; None
            where that depends on the machine.
        neighbours: Programs that run concurrently.
    """

    name: str
    size: str
    style: str
    files: dict[str, str]
    finding: str | None = None
    gain: float | None = None
    no_line: bool = False
    neighbours: tuple[str, ...] = ()

    def places(self) -> set[str]:
        """Returns the lines that the finding may name, as file:line."""
        return {
            f"{name}:{number}"
            for name, text in self.files.items()
            for number, line in enumerate(text.splitlines(), 1)
            if line.endswith(HERE)
        }


class Draw:
    """Draws sizes and styles; the middle of each range where nothing is to be random."""

    def __init__(self, seed: str | None) -> None:
        """`seed`: the same draws the same; None draws nothing at random."""
        self._random = None if seed is None else Random(seed)

    def between(self, low: float, high: float) -> float:
        """Returns a number, small ones as likely as large ones: uniform in its logarithm."""
        share = 0.5 if self._random is None else self._random.random()
        return float(low * (high / low) ** share)

    def whole(self, low: int, high: int) -> int:
        return round(self.between(low, high))

    def one_of(self, *things: Any) -> Any:
        return things[0] if self._random is None else self._random.choice(things)


def pass_batches(draw: Draw, step_s: float, passes: int, least: int = 60) -> int:
    """Returns the batches of an epoch: two seconds of training, and enough to judge it."""
    return max(round(2.0 / step_s), least) // passes + draw.whole(1, 8)


def enough_steps(planted_s: float) -> int:
    """Returns steps for some 20 stack samples of the fault's line, at 25 a second."""
    return max(round(0.8 / planted_s), 90)


def percent(share: float) -> str:
    return f"{share * 100:.0f} %"


def as_ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms"


def script_files(folder: str) -> dict[str, Callable[[Draw], PlantedScript]]:
    """Returns what draws each script of `faults` or `controls`, by its name."""
    paths = sorted((BENCHMARKS / folder).glob("*.py"))
    return {path.stem: partial(draw_script, path) for path in paths}


def draw_script(path: Path, draw: Draw) -> PlantedScript:
    """Returns the script that a file and a draw make."""
    head, *marked = _MARKER.split(path.read_text())
    known = _known(draw)
    drawn = dict(known)
    exec(compile(head, str(path), "exec"), drawn)
    truth = _truth(drawn["__doc__"])
    values = {name: drawn[name] for name in drawn.keys() - known.keys() if name.isupper()}
    parts: dict[str, str] = {}
    for name, condition, text in zip(marked[::3], marked[1::3], marked[2::3], strict=True):
        if not condition or eval(condition, drawn):
            key = name.replace(" ", "_")
            parts[key] = f"{parts.get(key, '')}\n\n{_put_in(text, values).strip()}".strip() + "\n"
    style, (slug, _, place) = drawn["STYLE"], truth.get("expect", "").partition(" @ ")
    return PlantedScript(
        name=path.stem,
        size=eval(f"f{truth['planted']!r}", drawn),
        style=style,
        files=_files(style, parts),
        finding=slug or None,
        gain=eval(truth.get("gain", "None"), drawn),
        no_line=place == "any line",
        neighbours=(truth["beside"],) if "beside" in truth else (),
    )


def _files(style: str, parts: dict[str, str]) -> dict[str, str]:
    if "script" in parts:
        body = parts["script"]
        if style == "function":
            lines = textwrap.indent(body, "    ")
            body = f'def main():\n{lines}\n\nif __name__ == "__main__":\n    main()\n'
        return {MAIN: f"{parts['imports']}\n\n{body}"}
    built = _assigned(parts.pop("built"))
    return script(style, Parts(**{"loader": None, **_typed({**parts, **built})}))


def _known(draw: Draw) -> dict[str, Any]:
    """Returns what the statements that draw may use."""
    return {
        "between": draw.between,
        "whole": draw.whole,
        "one_of": draw.one_of,
        "pass_batches": partial(pass_batches, draw),
        "enough_steps": enough_steps,
        "percent": percent,
        "as_ms": as_ms,
        "EVERYWHERE": EVERYWHERE,
        "WITH_GUARD": WITH_GUARD,
        "ON_DEVICE": ("plain loop", "function"),
        "PASSES": PASSES,
        "HANDING_OVER_S": HANDING_OVER_S,
        "STEPPING_S": STEPPING_S,
    }


def _truth(docstring: str) -> dict[str, str]:
    lines = re.findall(r"^(expect|planted|gain|beside): (.+)$", docstring, re.MULTILINE)
    return dict(lines)


def _put_in(text: str, values: dict[str, Any]) -> str:
    """Returns the text with the drawn values in place of their names."""
    if not values:
        return text
    names = re.compile(rf"\b({'|'.join(values)})\b")
    return names.sub(lambda name: _literal(values[name[1]]), text)


def _literal(value: Any) -> str:
    return f"{value:.6f}" if isinstance(value, float) else str(value)


def _assigned(text: str) -> dict[str, str]:
    """Returns what each line assigns, comments included, by the name."""
    _, *pairs = _BUILT.split(text)
    return {name: value.strip() for name, value in zip(pairs[::2], pairs[1::2], strict=True)}


def _typed(parts: dict[str, str]) -> dict[str, Any]:
    literal = {"accumulate", "compute_s", "epochs", "evaluating", "steps", "validate_every"}
    return {
        name: ast.literal_eval(text) if name in literal or text.startswith('"') else text
        for name, text in parts.items()
    }
