"""The page in the terminal: golden screens, sums, widths, hostile strings, missing figures."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
from rich.cells import cell_len
from support import summaries

from trainprof.analysis.summary.run import Exit, Ledger, Outlier
from trainprof.analysis.summary.run_summary import RunSummary
from trainprof.report.page import page as terminal
from trainprof.report.text.layout import Page

SCREENS = {
    "slow_loader": summaries.slow_loader,
    "several_findings": summaries.several_findings,
    "healthy": summaries.healthy,
    "killed_for_memory": summaries.killed_for_memory,
    "starved": summaries.starved,
}
ALL = {
    **SCREENS,
    "accelerator": summaries.accelerator,
    "cut_off": summaries.cut_off,
    "sparse": summaries.sparse,
    "hostile": summaries.hostile,
    "gpus": summaries.mixed_gpus,
}

LEDGER_ROW = re.compile(
    r"^  (?P<label>\S.*?) +[█▉▊▋▌▍▎▏]* +"
    r"(?P<seconds>[\d,.]+) +(?P<percent>[\d.]+) %(?: +(?P<step>[\d,.]+))?$"
)
CONTROLS = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def page(summary: RunSummary, width: int = 80, **options: Any) -> str:
    return terminal.render(summary, Page(width, **options))


def ledger_rows(text: str) -> list[dict[str, str | None]]:
    """The total comes last."""
    lines = text.split("Where the time went", 1)[1].split("\n")[1:]
    matches = [LEDGER_ROW.match(line) for line in lines[: lines.index("")]]
    assert all(matches), lines
    return [match.groupdict() for match in matches if match]


def all_but_the_command(text: str) -> list[str]:
    """The lines but for the commands to copy, which are never broken."""
    commands = ("trainprof report ", "trainprof lines ", "trainprof tune ")
    lines = text.removesuffix("\n").split("\n")
    return [line for line in lines if not line.startswith(commands)]


def units(number: str | None) -> int:
    """A printed number in its last decimals."""
    return int((number or "0").replace(",", "").replace(".", ""))


def test_screens_are_the_golden_ones(golden):
    for name, make in SCREENS.items():
        golden(f"{name}_80.txt", page(make()))
    golden("slow_loader_120.txt", page(summaries.slow_loader(), 120))
    golden("slow_loader_verbose_80.txt", page(summaries.slow_loader(), verbose=True))


@pytest.mark.parametrize("name", sorted(ALL.keys() - {"hostile", "several_findings"}))
def test_what_matters_fits_thirty_lines(name):
    assert page(ALL[name]()).count("\n") <= 30


def test_a_full_page_gives_up_what_matters_least():
    base = summaries.accelerator()
    full = replace(
        base,
        run=replace(base.run, exit=Exit(None, 9, "killed", "out of memory: " + "word " * 40)),
        epochs=[summaries.epoch(index, 20.0, 3.0, slow_batches=7) for index in range(9)],
        evaluation=replace(base.evaluation, passes=3, seconds=7.0),
        loaders=[summaries.loader(f"train.py:{line}") for line in range(41, 49)],
        outliers=[Outlier(7, 0, 3.0, 1.0, "data_wait", 0.9, 50, None)] * 3,
        faults=["the loader probe was switched off"],
    )
    short, verbose = page(full), page(full, verbose=True)
    for section, is_short in (("Mean of 9", True), ("Epoch 1", False), ("Syncs", False)):
        assert (f"\n{section}" in short) is is_short
    assert "\nEpoch 1" in verbose
    assert "\nSyncs" in verbose
    for bottleneck, label in (("transfer", "Transfers"), ("sync", "Syncs")):
        verdict = replace(base.verdict, bottleneck=bottleneck)
        assert f"\n{label}" in page(replace(full, verdict=verdict))


@pytest.mark.parametrize("width", [30, 60, 80, 120, 200])
@pytest.mark.parametrize("name", ALL)
def test_no_line_is_wider_than_the_page(name, width):
    for verbose in (False, True):
        for line in all_but_the_command(page(ALL[name](), width, verbose=verbose)):
            assert cell_len(line) <= width
            assert line == line.rstrip()


@pytest.mark.parametrize("verbose", [False, True])
@pytest.mark.parametrize("width", [60, 80, 120])
@pytest.mark.parametrize("name", ["slow_loader", "healthy", "killed_for_memory", "accelerator"])
def test_columns_add_up_to_the_totals_shown(name, width, verbose):
    summary = ALL[name]()
    *rows, total = ledger_rows(page(summary, width, verbose=verbose))
    assert total["label"] == "total"
    for column in ("seconds", "percent", "step"):
        assert sum(units(row[column]) for row in rows) == units(total[column]), column
    assert total["percent"] == "100.0"
    assert float(total["seconds"] or 0) == pytest.approx(summary.ledger.wall_s, abs=0.06)


def test_what_the_ledger_lacks_is_a_row_of_its_own():
    summary = summaries.slow_loader()
    longer = Ledger(summary.ledger.wall_s + 20.0, summary.ledger.seconds, {})
    row = ledger_rows(page(replace(summary, ledger=longer)))[1]
    assert (row["label"], row["seconds"]) == ("not accounted for", "20.0")


def test_waits_for_the_gpu_are_one_row_and_no_culprit():
    first = ledger_rows(page(summaries.accelerator()))[0]
    assert (first["seconds"], first["step"]) == ("68.0", "34.0")
    for verbose in (False, True):
        text = page(summaries.accelerator(), verbose=verbose)
        for name in ("sync (", "transfer (", "device wait", "58.1 s", "9.60 s"):
            assert name not in text
    assert "transfer (" in page(summaries.slow_loader(), verbose=True)


@pytest.mark.parametrize("verbose", [False, True])
@pytest.mark.parametrize("name", ["healthy", "killed_for_memory", "accelerator", "starved", "gpus"])
def test_odd_and_missing_numbers_do_not_stop_the_page(name, verbose):
    for value in (float("nan"), float("inf"), 0.0, -1.0):
        text = page(summaries.with_every_float(ALL[name](), value), verbose=verbose)
        assert not re.search(r"\b(nan|inf)\b", text)
        assert text.count("\n") > 10
    for missing in (page(summaries.cut_off(), verbose=verbose), page(summaries.sparse())):
        assert not re.search("None|nan", missing)
        assert "not measured" in missing


@pytest.mark.parametrize("verbose", [False, True])
@pytest.mark.parametrize("name", ALL)
def test_pages_are_plain_unless_colour_is_allowed_and_ascii_where_asked(name, verbose):
    text = page(ALL[name](), verbose=verbose)
    assert not CONTROLS.search(text)
    text.encode("utf-8")
    coloured = page(ALL[name](), verbose=verbose, color=True)
    plain = re.sub(r"\x1b\[[0-9;]*m", "", coloured)
    assert [line.rstrip() for line in plain.split("\n")] == text.split("\n")
    assert coloured != text
    assert "\x1b[31m" not in coloured  # the script's own red
    ascii_page = page(ALL[name](), unicode=False, verbose=verbose)
    assert ascii_page.isascii()
    assert max(map(len, all_but_the_command(ascii_page))) <= 80
    if name == "hostile":
        assert "[red]evil[/red]" in text


def test_an_escape_takes_none_of_our_words_with_it():
    summary = summaries.slow_loader()
    named = replace(summary, run=replace(summary.run, name="train.py\x1b["))
    assert page(named).startswith("trainprof: train.py completed after")


def test_wide_characters_keep_the_columns_and_a_long_site_its_end():
    site = "projects/segmentation/experiments/train_segmentation_model.py:1041"
    loaders = [summaries.loader(at) for at in ("训练脚本/数据.py:41", site)]
    lines = page(replace(summaries.slow_loader(), loaders=loaders)).split("\n")
    start = next(number for number, line in enumerate(lines) if line.startswith("Loader"))
    assert len({cell_len(line) for line in lines[start : start + 3]}) == 1
    assert lines[start + 2].startswith("…")
    assert "train_segmentation_model.py:1041 " in lines[start + 2]


@pytest.mark.parametrize("width", [20, 80, 119, 120, 130, 131, 200])
def test_the_next_command_can_be_pasted_and_is_never_broken(width):
    summary = summaries.slow_loader()
    directory = f"/my data/{'deep/' * 20}run"
    command = f"trainprof report '{directory}'"
    far = replace(summary, run=replace(summary.run, directory=directory))
    for color in (False, True):
        *_, last = page(far, width, color=color).removesuffix("\n").split("\n")
        assert last.endswith(f" {command}") or last == command


def test_many_middling_rows_are_named_and_the_page_still_fits():
    keys = ("data_wait", "backward", "forward", "optimizer", "evaluation", "other", "startup")
    seconds = dict.fromkeys(keys, 10.0) | {"transfer": 6.0, "gc": 3.0, "loss": 2.0, "sync": 2.0}
    text = page(replace(summaries.healthy(), ledger=summaries.ledger(seconds)))
    assert text.count("\n") <= 30
    labels = [row["label"] for row in ledger_rows(text)]
    assert len(labels) == len(keys) + 3
    assert str(labels[-2]).startswith("rest (")
    assert "transfer (copying)" in labels
