"""The rooms of the design, and which doors are open between them."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "trainprof"

# Room: the rooms it may import, and the third-party packages.
ROOMS = {
    "record": (set(), set()),
    "probes": ({"record"}, {"line_profiler"}),
    "tracee": ({"probes", "record"}, set()),
    "sampling": ({"record"}, {"psutil", "pynvml"}),
    "launch": ({"sampling", "record", "tracee"}, set()),
    "analysis": ({"record"}, {"numpy"}),
    "report": ({"analysis"}, {"rich"}),
    "experiments": ({"launch", "analysis", "record"}, {"numpy"}),
    # cli/lines.py writes an .lprof by line_profiler's own LineStats.
    "cli": (
        {"launch", "experiments", "analysis", "report", "record"},
        {"typer", "click", "line_profiler"},
    ),
}
# launch starts the tracee; of its code it may know only where the hook directory lies.
LAUNCH_SEES_OF_TRACEE = "trainprof.tracee"
TOP_LEVEL_MODULES = {"__init__", "__main__"}


def imports_of(path: Path) -> set[str]:
    """Returns the absolute module names that a file imports, at any depth."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            assert node.module is not None
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


def files_of(room: str) -> list[Path]:
    return sorted((PACKAGE / room).rglob("*.py"))


def test_every_room_is_known():
    rooms = {path.name for path in PACKAGE.iterdir() if path.is_dir() and path.name[0] != "_"}
    modules = {path.stem for path in PACKAGE.glob("*.py")}
    assert rooms == set(ROOMS)
    assert modules == TOP_LEVEL_MODULES


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_imports_only_what_its_doors_allow(room):
    rooms, packages = ROOMS[room]
    for path in files_of(room):
        for name in imports_of(path):
            parts = name.split(".")
            if parts[0] == "trainprof":
                allowed = len(parts) == 1 or parts[1] in {room, *rooms} or parts[1][:2] == "__"
                assert allowed, f"{path.name} imports {name}"
            elif parts[0] not in sys.stdlib_module_names and parts[0] != "sitecustomize":
                assert parts[0] in packages, f"{path.name} imports {name}"


def test_launch_knows_only_where_the_tracee_lies():
    for path in files_of("launch"):
        names = {n for n in imports_of(path) if n.startswith(LAUNCH_SEES_OF_TRACEE)}
        assert names <= {LAUNCH_SEES_OF_TRACEE, f"{LAUNCH_SEES_OF_TRACEE}.site_directory"}


def test_one_file_of_cli_imports_line_profiler():
    files = {p.stem for p in files_of("cli") if "line_profiler" in top_level(imports_of(p))}
    assert files == {"lines"}


def test_one_file_imports_line_profiler_and_others_import_that_file_only_where_lines_are_timed():
    engine = {"line_timer": "line_profiler", "lines": "trainprof.probes.line_timer"}
    users = {"line_record": engine["lines"]}
    users["bootstrap"] = "trainprof.probes.lines"
    for room in ("probes", "tracee"):
        for path in files_of(room):
            found = {
                name
                for name in imports_of(path)
                if name
                in ("line_profiler", "trainprof.probes.line_timer", "trainprof.probes.lines")
            }
            assert found <= {(engine | users).get(path.stem)}, path
    assert not any(
        "trainprof.probes.line_" in name or name == "line_profiler"
        for name in modules_after("import trainprof.tracee.bootstrap, trainprof.probes.catalogue")
    )


def test_no_room_imports_torch():
    for room in ROOMS:
        for path in files_of(room):
            assert not {n for n in imports_of(path) if n.split(".")[0] == "torch"}, path


def modules_after(code: str) -> set[str]:
    """Returns the names in sys.modules after `code` ran in a fresh interpreter."""
    tail = "\nimport json, sys; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", code + tail], capture_output=True, text=True, check=True
    )
    return set(json.loads(done.stdout.splitlines()[-1]))


def top_level(modules: set[str]) -> set[str]:
    return {name.split(".")[0] for name in modules}


def test_the_command_line_loads_nothing_heavy_before_the_script_starts():
    loaded = top_level(modules_after("import trainprof.cli.app, trainprof.cli.run"))
    assert not loaded & {"torch", "numpy", "rich", "psutil", "pynvml"}


def test_rendering_needs_neither_torch_nor_sampling():
    loaded = top_level(
        modules_after("import trainprof.analysis, trainprof.report.terminal, trainprof.cli.report")
    )
    assert not loaded & {"torch", "psutil", "pynvml"}


def test_the_script_process_gets_only_the_standard_library_and_three_rooms():
    bare = modules_after("")
    code = (
        "import trainprof.tracee.bootstrap, trainprof.probes.catalogue, trainprof.probes.session,"
        " trainprof.record.event_log"
    )
    added = modules_after(code) - bare
    ours = {name for name in added if name.split(".")[0] == "trainprof"}
    assert top_level(added - ours) <= set(sys.stdlib_module_names)
    rooms = {name.split(".")[1] for name in ours if "." in name}
    assert rooms == {"tracee", "probes", "record"}
