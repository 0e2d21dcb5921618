"""Fault scripts as files: what is drawn of each, what is true of it, and the parts it is made of.

A file's docstring says what is planted, then what is true of it, a line each:

    expect: SLUG [@ any line]   the finding that has to come first; without it there must be none
    planted: TEXT               the fault's size, with drawn values in braces
    gain: EXPRESSION            how many times as fast training would be without the fault

Statements up to the first marker are run to draw its sizes, in this order: a seed's script is the
same each time. Behind it the parts of the script stand as they are, with the drawn names in
capitals put in; those that are only there for some draws end in `if EXPRESSION`. Where a finding
has to point, a line ends in `# here`.

    # -- imports, definitions, setup   of the script itself
    # -- data                          what the loader needs
    # -- each batch, each step, each epoch   ahead of the forward, after an update, after an epoch
    # -- built                         loader, model, optimizer, ...: a part of `Parts` each line
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

from planted import sizes
from planted.draw import Draw
from planted.script import EVERYWHERE, WITH_GUARD, Case, Parts, as_ms, script

BENCHMARKS = Path(__file__).parents[1]
_MARKER = re.compile(r"^# -- ([a-z ]+?)(?: if (.+))?\n", re.MULTILINE)
_BUILT = re.compile(r"^(\w+) = ", re.MULTILINE)
_TYPES = {field.name: field.type for field in fields(Parts)}


def script_files(folder: str) -> dict[str, Callable[[Draw], Case]]:
    """Returns what draws each script of `faults` or `controls`, by its name."""
    paths = sorted((BENCHMARKS / folder).glob("*.py"))
    return {path.stem: partial(planted, path) for path in paths}


def planted(path: Path, draw: Draw) -> Case:
    """Returns the script that a file and a draw make."""
    head, *marked = _MARKER.split(path.read_text())
    known = _known(draw)
    drawn = dict(known)
    exec(compile(head, str(path), "exec"), drawn)
    told = _truth(drawn["__doc__"])
    values = {name: drawn[name] for name in drawn.keys() - known.keys() if name.isupper()}
    parts: dict[str, str] = {}
    for name, condition, text in zip(marked[::3], marked[1::3], marked[2::3], strict=True):
        if not condition or eval(condition, drawn):
            key = name.replace(" ", "_")
            parts[key] = f"{parts.get(key, '')}\n\n{_put_in(text, values).strip()}".strip() + "\n"
    built = parts.pop("built")
    style, (slug, _, place) = drawn["STYLE"], told.get("expect", "").partition(" @ ")
    return Case(
        name=path.stem,
        planted=eval(f"f{told['planted']!r}", drawn),
        style=style,
        files=script(style, Parts(**{"loader": None, **_typed({**parts, **_assigned(built)})})),
        finding=slug or None,
        gain=eval(told.get("gain", "None"), drawn),
        no_line=place == "any line",
    )


def _known(draw: Draw) -> dict[str, Any]:
    """Returns what the statements that draw may use."""
    return {
        "between": draw.between,
        "whole": draw.whole,
        "one_of": lambda *things: draw.one_of(things),
        "pass_batches": partial(sizes.pass_batches, draw),
        "enough_steps": sizes.enough_steps,
        "percent": sizes.percent,
        "as_ms": as_ms,
        "EVERYWHERE": EVERYWHERE,
        "WITH_GUARD": WITH_GUARD,
        "PASSES": sizes.PASSES,
        "HANDING_OVER_S": sizes.HANDING_OVER_S,
        "STEPPING_S": sizes.STEPPING_S,
    }


def _truth(docstring: str) -> dict[str, str]:
    lines = re.findall(r"^(expect|planted|gain): (.+)$", docstring, re.MULTILINE)
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
    numbers = {"int", "float"}
    return {
        name: ast.literal_eval(text) if _TYPES[name] in numbers else text
        for name, text in parts.items()
    }
