"""Renders stack samples for https://www.speedscope.app, one profile per thread."""

from __future__ import annotations

import json
import re
from typing import Any, Final

from trainprof.analysis.summary.charts import Stacks
from trainprof.report.text.safe_text import one_line

_SCHEMA: Final = "https://www.speedscope.app/file-format-schema.json"
_LINE: Final = re.compile(r"(.*):(\d{1,9})", re.DOTALL)


def render(stacks: Stacks, name: str) -> str:
    """Returns the JSON of speedscope's file format; each profile's outermost frames are phases.

    Args:
        name: Of the run.
    """
    frames: list[dict[str, Any]] = [_frame(*frame) for frame in stacks.frames]
    phases: dict[str, int] = {}
    profiles: dict[str, dict[str, Any]] = {}
    for thread, phase, _, numbers, seconds in stacks.stacks:
        if phase not in phases:
            phases[phase] = len(frames)
            frames.append({"name": f"[{one_line(phase)}]"})
        profile = profiles.setdefault(
            thread,
            {
                "type": "sampled",
                "name": one_line(thread),
                "unit": "seconds",
                "startValue": 0,
                "endValue": 0.0,
                "samples": [],
                "weights": [],
            },
        )
        profile["samples"].append([phases[phase], *numbers])
        profile["weights"].append(seconds)
        profile["endValue"] += seconds
    document = {
        "$schema": _SCHEMA,
        "name": one_line(name),
        "exporter": "trainprof",
        "shared": {"frames": frames},
        "profiles": list(profiles.values()),
    }
    return json.dumps(document, allow_nan=False, separators=(",", ":")) + "\n"


def _frame(function: str, place: str) -> dict[str, Any]:
    frame: dict[str, Any] = {"name": one_line(function)}
    line = _LINE.fullmatch(place)
    if line is not None:
        frame |= {"file": one_line(line[1]), "line": int(line[2])}
    elif place:
        frame["file"] = one_line(place)
    return frame
