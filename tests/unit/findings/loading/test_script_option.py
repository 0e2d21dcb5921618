"""The script's option that sets what a finding changes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from support import summaries

from trainprof.findings.loading.script_option import ScriptFiles, with_flag

TWO = {"num_workers": 2, "persistent_workers": True}
ADDED = 'parser.add_argument("--workers", type=int, default=0)'
PARSE = "parser.parse_args()"
PARSED = f"args = {PARSE}"
BUILT = "loader = DataLoader(data, num_workers=args.workers)"
FROM_FILE = 'DataLoader(data, num_workers=cfg["workers"])'


def flag_of(folder: Path, *lines: str, change: dict[str, int] = TWO, module: str = "") -> str:
    """Returns the flag where the last line builds the loader: of a module, if there is one."""
    (folder / "train.py").write_text("\n".join(lines) + "\n")
    (folder / "data.py").write_text(module + "\n")
    line = module.count("\n") + 1 if module else len(lines)
    site = f"{'data' if module else 'train'}.py:{line}"
    manifest = {"cwd": str(folder), "entry": "train.py", "times": {"spawned_time_ns": 2**61}}
    finding = summaries.finding(site=site, change=change)
    return with_flag(finding, ScriptFiles.of(manifest)).flag


@pytest.mark.parametrize(
    ("lines", "flag"),
    [
        ([ADDED, PARSED, BUILT], "--workers 2"),
        ([ADDED, "args = vars(parser.parse_args())", BUILT], "--workers 2"),
        ([ADDED, PARSED, 'loader = DataLoader(data, num_workers=args["workers"])'], "--workers 2"),
        (
            ['p.add_argument("-j", "--num-workers", dest="workers", type=int)', PARSED, BUILT],
            "--num-workers 2",
        ),
        (
            [
                'p.add_argument("-j", "--n-cpu", type=int)',
                "opt, rest = p.parse_known_args()",
                "DataLoader(num_workers=opt.n_cpu)",
            ],
            "--n-cpu 2",
        ),
        (['p.add_argument("-workers", type=int)', PARSED, BUILT], "-workers 2"),
        ([ADDED, f"def parse_args(): return {PARSE}", "args = parse_args()", BUILT], "--workers 2"),
        ([ADDED, "def parsed():", f" args = {PARSE}", " return args", BUILT], "--workers 2"),
        ([ADDED, PARSED, "wandb.config.update(args)", BUILT], "--workers 2"),
        # Not certain.
        ([ADDED, PARSED, "loader = DataLoader(data, num_workers=args.workers or 4)"], ""),
        ([ADDED, PARSED, "loader = DataLoader(data, num_workers=workers)"], ""),
        ([ADDED, PARSED, "loader = DataLoader(data, **options)"], ""),
        ([ADDED, PARSED, "args.workers = 0", BUILT], ""),
        ([ADDED, PARSED, "args.workers //= 2", BUILT], ""),
        ([ADDED, ADDED, PARSED, BUILT], ""),
        ([ADDED, PARSED, "vars(args).update(yaml.safe_load(file))", BUILT], ""),
        ([ADDED, PARSED, "setattr(args, name, 3)", BUILT], ""),
        # The loader's argument comes from elsewhere.
        ([ADDED, PARSED, "self.workers = 4", "DataLoader(data, num_workers=self.workers)"], ""),
        ([ADDED, PARSED, "cfg = yaml.safe_load(file)", FROM_FILE], ""),
        ([ADDED, PARSED, "def build(cfg):", f"    {FROM_FILE}"], ""),
        ([ADDED, "cfg = load(cfg)", "def load(cfg): return cfg", FROM_FILE], ""),
        ([ADDED, "args = load()", "def load(): return load()", BUILT], ""),
        ([ADDED, PARSED, "args = Namespace(**settings)", BUILT], ""),
        ([ADDED, PARSED, "from settings import args", BUILT], ""),
        ([ADDED, BUILT], ""),
        (['parser.add_argument("workers", type=int)', PARSED, BUILT], ""),
        (['parser.add_argument("--workers", type=int, nargs=2)', PARSED, BUILT], ""),
        (['parser.add_argument("--workers", type=int, choices=[0, 4])', PARSED, BUILT], ""),
        (['parser.add_argument("--workers", type=float)', PARSED, BUILT], ""),
        ([PARSED, BUILT], ""),
        (["not Python:", BUILT], ""),
    ],
)
def test_the_option_of_a_loader_s_workers(tmp_path: Path, lines: list[str], flag: str) -> None:
    assert flag_of(tmp_path, *lines) == flag


def test_several_arguments_have_several_options(tmp_path: Path) -> None:
    batch = 'parser.add_argument("--batch-size", type=int)'
    built = "DataLoader(data, batch_size=args.batch_size, num_workers=args.workers)"
    change = {"num_workers": 2, "batch_size": 64}
    flag = flag_of(tmp_path, ADDED, batch, PARSED, built, change=change)
    assert flag == "--workers 2 --batch-size 64"


def test_a_loader_of_a_module_has_the_script_s_option(tmp_path: Path) -> None:
    module = "def build(args):\n    return DataLoader(\n        num_workers=args.workers\n    )"
    assert flag_of(tmp_path, ADDED, PARSED, module=module) == "--workers 2"


def test_a_file_that_was_changed_since_is_not_read(tmp_path: Path) -> None:
    assert flag_of(tmp_path, ADDED, PARSED, BUILT)
    os.utime(tmp_path / "train.py", ns=(2**61, 2**61 + 10**9))
    finding = summaries.finding(site="train.py:3", change=TWO)
    assert not with_flag(finding, ScriptFiles(tmp_path, tmp_path / "train.py", 2**61)).flag


@pytest.mark.parametrize("manifest", [{}, {"cwd": 3, "entry": [], "times": []}])
def test_a_damaged_manifest_names_no_file(manifest: dict[str, object]) -> None:
    finding = summaries.finding(site="train.py:3", change=TWO)
    assert not with_flag(finding, ScriptFiles.of(manifest)).flag


def test_a_working_directory_that_cannot_be_read_names_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "stat", refuse)
    assert ScriptFiles.of({"cwd": str(tmp_path), "entry": "train.py"}).script is None
