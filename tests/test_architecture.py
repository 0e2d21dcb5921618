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
    "inside": ({"record"}, {"line_profiler"}),
    "sampling": ({"record"}, {"psutil", "pynvml"}),
    "launch": ({"sampling", "record", "inside"}, set()),
    "analysis": ({"record"}, {"numpy"}),
    "findings": ({"analysis", "record"}, {"numpy"}),
    "compare": ({"analysis", "record"}, {"numpy"}),
    "tune": ({"launch", "compare", "analysis", "findings", "record"}, {"numpy"}),
    # Of the HTML page and the trace alone, imported when one is written: jinja2 and numpy.
    "report": ({"analysis", "compare"}, {"rich", "jinja2", "markupsafe", "numpy"}),
    # cli/lines.py writes an .lprof by line_profiler's own LineStats.
    "cli": (
        {"launch", "tune", "compare", "analysis", "findings", "report", "record"},
        {"typer", "click", "line_profiler"},
    ),
}
# launch starts the script's process; of what runs there it knows only where its hook lies.
LAUNCH_SEES_OF_INSIDE = "trainprof.inside.start"
# A finding's probe runs inside the script's process.
PROBE = "probe.py"
MOST_FILES = 25
MOST_IMPORTS = 30
LONGEST_CHAIN = 15
SCRIPT_PROCESS = (
    "import trainprof.inside.start.bootstrap, trainprof.inside.catalogue,"
    " trainprof.inside.session, trainprof.record.event_log"
)
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
        if path.name == PROBE and room == "findings":
            continue
        known = {room, *rooms}
        for name in imports_of(path):
            parts = name.split(".")
            if path.name == "catalogue.py" and room == "inside" and "probe" in parts:
                continue
            if parts[0] == "trainprof":
                allowed = len(parts) == 1 or parts[1] in known or parts[1][:2] == "__"
                assert allowed, f"{path.name} imports {name}"
            elif parts[0] not in sys.stdlib_module_names and parts[0] != "sitecustomize":
                assert parts[0] in packages, f"{path.name} imports {name}"


def test_launch_knows_only_where_the_hook_directory_lies():
    for path in files_of("launch"):
        names = {n for n in imports_of(path) if n.startswith("trainprof.inside")}
        assert names <= {LAUNCH_SEES_OF_INSIDE, f"{LAUNCH_SEES_OF_INSIDE}.site_directory"}


def test_report_knows_of_analysis_only_the_summary():
    names = {name for path in files_of("report") for name in imports_of(path)}
    seen = {x for x in names if x.startswith("trainprof.analysis") and module_file(x).is_file()}
    beside = {x for x in seen if not x.startswith("trainprof.analysis.summary.")}
    assert not beside
    assert len(seen) <= 10


def test_probes_of_findings_import_what_the_script_s_process_has():
    for path in files_of("findings"):
        if path.name != PROBE:
            continue
        ours = {name.split(".")[1] for name in imports_of(path) if name.startswith("trainprof.")}
        assert ours <= {"inside", "record"}, path
        assert top_level(imports_of(path)) <= {*sys.stdlib_module_names, "trainprof"}, path


def test_no_folder_holds_more_than_can_be_seen_at_once():
    for folder in PACKAGE.rglob("*"):
        assert len(list(folder.glob("*.py"))) <= MOST_FILES + 1, folder


def test_no_file_imports_more_than_can_be_known_at_once():
    for room in ROOMS:
        for path in files_of(room):
            imports = [x for x in imports_of(path) if module_file(x).is_file()]
            assert len(imports) <= MOST_IMPORTS, path


def test_no_import_goes_through_more_files_than_can_be_followed():
    """Imports for annotations alone, and those inside functions, are not followed."""
    modules = {
        ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts): path
        for room in ROOMS
        for path in files_of(room)
    }
    imports = {name: imports_at_import(path) & set(modules) for name, path in modules.items()}
    chains: dict[str, list[str]] = {}

    def chain(name: str, importers: tuple[str, ...] = ()) -> list[str]:
        assert name not in importers, f"a cycle: {[*importers, name]}"
        if name not in chains:
            imported = [chain(other, (*importers, name)) for other in imports[name]]
            chains[name] = [name, *max(imported, key=len, default=[])]
        return chains[name]

    longest = max(map(chain, modules), key=len)
    assert len(longest) <= LONGEST_CHAIN, longest


def imports_at_import(path: Path) -> set[str]:
    """Returns what a file imports as it is imported itself."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    names = set()
    for node in tree.body:
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names |= {f"{node.module}", *(f"{node.module}.{alias.name}" for alias in node.names)}
    return names


def module_file(name: str) -> Path:
    return PACKAGE.parent / f"{name.replace('.', '/')}.py"


def test_one_file_of_cli_imports_line_profiler():
    files = {p.stem for p in files_of("cli") if "line_profiler" in top_level(imports_of(p))}
    assert files == {"lines"}


def test_one_file_imports_line_profiler_and_others_import_that_file_only_where_lines_are_timed():
    timer, probe = "trainprof.inside.lines.timer", "trainprof.inside.lines.probe"
    users = {
        "lines/timer.py": "line_profiler",
        "lines/probe.py": timer,
        "start/bootstrap.py": probe,
    }
    for path in files_of("inside"):
        found = imports_of(path) & {"line_profiler", timer, probe}
        assert found <= {users.get("/".join(path.parts[-2:]))}, path
    assert not any(
        "trainprof.inside.lines" in name or name == "line_profiler"
        for name in modules_after(SCRIPT_PROCESS)
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
        modules_after("import trainprof.analysis, trainprof.report.page.page, trainprof.cli.report")
    )
    assert not loaded & {"torch", "psutil", "pynvml"}


def test_the_script_process_gets_only_the_standard_library_and_its_rooms():
    added = modules_after(SCRIPT_PROCESS) - modules_after("")
    ours = {name for name in added if name.split(".")[0] == "trainprof"}
    assert top_level(added - ours) <= set(sys.stdlib_module_names)
    rooms = {name.split(".")[1] for name in ours if "." in name}
    assert rooms == {"inside", "record", "findings"}
    of_findings = {name for name in ours if name.startswith("trainprof.findings")}
    packages = {name for name in of_findings if (PACKAGE.parent / name.replace(".", "/")).is_dir()}
    assert {name.rpartition(".")[2] for name in of_findings - packages} == {"probe"}
