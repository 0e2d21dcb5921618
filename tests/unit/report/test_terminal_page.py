"""The page in the terminal: golden screens, sums, widths, hostile strings, missing figures."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
from rich.cells import cell_len
from support import summaries

from trainprof.analysis.summary.run import Exit, Ledger
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
STEP_ROW = re.compile(r"^  (\S.*?) +[█▉▊▋▌▍▎▏]* +([\d,.]+) m?s +(\d+) %$")
CONTROLS = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def page(summary: RunSummary, width: int = 80, **options: Any) -> str:
    return terminal.render(summary, Page(width, **options))


def ledger_rows(text: str) -> list[dict[str, str | None]]:
    """The total comes last."""
    lines = text.split("Where the time went", 1)[1].split("\n")[1:]
    matches = [LEDGER_ROW.match(line) for line in lines[: lines.index("")]]
    assert all(matches), lines
    return [match.groupdict() for match in matches if match]


def step_rows(text: str) -> tuple[str, list[tuple[str, str, str]]]:
    """Returns the step's time, and each row's label, time and share."""
    title, *below = text[text.index("One training step") :].split("\n")
    matches = [STEP_ROW.match(line) for line in below]
    count = matches.index(None)
    rows = [(match[1], match[2], match[3]) for match in matches[:count] if match]
    return title.split()[-4], rows


def all_but_the_command(text: str) -> list[str]:
    """The lines but for the commands to copy, which are never broken."""
    lines = text.removesuffix("\n").split("\n")
    return [line for line in lines if not line.startswith("trainprof ")]


def units(number: str | None) -> int:
    """A printed number in its last decimals."""
    return int((number or "0").replace(",", "").replace(".", ""))


def test_screens_are_the_golden_ones(golden):
    for name, make in SCREENS.items():
        golden(f"{name}_80.txt", page(make()))
    golden("slow_loader_120.txt", page(summaries.slow_loader(), 120))
    golden("slow_loader_verbose_80.txt", page(summaries.slow_loader(), verbose=True))


@pytest.mark.parametrize("name", sorted(ALL.keys() - {"hostile"}))
def test_a_page_fits_a_small_terminal(name):
    summary = ALL[name]()
    assert page(summary).count("\n") <= 24 + 2 * (len(summary.findings) > 2)


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
    step, parts = step_rows(page(summary, width, verbose=verbose))
    # A row that rounds to nothing is left out.
    assert 0 <= units(step) - sum(units(time) for _, time, _ in parts) <= 1
    assert 0 <= 100 - sum(int(share) for *_, share in parts) <= 1
    assert len(parts) <= 7
    *rows, total = ledger_rows(page(summary, width, verbose=True))
    assert total["label"] == "total"
    for column in ("seconds", "percent", "step"):
        assert sum(units(row[column]) for row in rows) == units(total[column]), column
    assert total["percent"] == "100.0"
    assert float(total["seconds"] or 0) == pytest.approx(summary.ledger.wall_s, abs=0.06)


def test_what_the_ledger_lacks_is_a_row_of_its_own():
    summary = summaries.slow_loader()
    longer = Ledger(summary.ledger.wall_s + 20.0, summary.ledger.seconds, {})
    row = ledger_rows(page(replace(summary, ledger=longer), verbose=True))[1]
    assert (row["label"], row["seconds"]) == ("not accounted for", "20.0")


def test_waits_for_the_gpu_are_one_row_and_no_culprit():
    _, [first, *_] = step_rows(page(summaries.accelerator()))
    assert first == ("waiting for the GPU", "34.0", "56")
    for verbose in (False, True):
        text = page(summaries.accelerator(), verbose=verbose)
        for name in ("sync (", "transfer (", "device wait", "58.1 s", "9.60 s"):
            assert name not in text


@pytest.mark.parametrize("verbose", [False, True])
@pytest.mark.parametrize("name", ["healthy", "killed_for_memory", "accelerator", "starved", "gpus"])
def test_odd_and_missing_numbers_do_not_stop_the_page(name, verbose):
    for value in (float("nan"), float("inf"), 0.0, -1.0):
        text = page(summaries.with_every_float(ALL[name](), value), verbose=verbose)
        assert not re.search(r"\b(nan|inf)\b", text)
        assert text.count("\n") > 2
    for missing in (page(summaries.cut_off(), verbose=verbose), page(summaries.sparse())):
        assert not re.search("None|nan", missing)


@pytest.mark.parametrize("verbose", [False, True])
@pytest.mark.parametrize("name", ALL)
def test_pages_are_plain_unless_colour_is_allowed_and_ascii_where_asked(name, verbose):
    text = page(ALL[name](), verbose=verbose)
    assert not CONTROLS.search(text)
    text.encode("utf-8")
    coloured = page(ALL[name](), verbose=verbose, color=True)
    plain = re.sub(r"\x1b\[[0-9;]*m", "", coloured)
    assert [line.rstrip() for line in plain.split("\n")] == text.split("\n")
    assert coloured != text or name == "cut_off"
    assert "\x1b[31m" not in coloured  # the script's own red
    ascii_page = page(ALL[name](), unicode=False, verbose=verbose)
    assert ascii_page.isascii()
    assert max(map(len, all_but_the_command(ascii_page))) <= 80
    if name == "hostile":
        assert "[red]evil[/red]" in text


def test_an_escape_takes_none_of_our_words_with_it():
    summary = summaries.slow_loader()
    named = replace(summary, run=replace(summary.run, name="train.py\x1b["))
    assert page(named).split("\n")[1].startswith("train.py finished in")


def test_wide_characters_keep_the_columns_and_a_long_site_its_end():
    site = "projects/segmentation/experiments/train_segmentation_model.py:1041"
    loaders = [summaries.loader(at) for at in ("训练脚本/数据.py:41", site)]
    lines = page(replace(summaries.slow_loader(), loaders=loaders), verbose=True).split("\n")
    start = next(number for number, line in enumerate(lines) if line.startswith("Loader  "))
    assert len({cell_len(line) for line in lines[start : start + 3]}) == 1
    assert lines[start + 2].startswith("…")
    assert "train_segmentation_model.py:1041 " in lines[start + 2]


@pytest.mark.parametrize("width", [20, 80, 119, 120, 130, 131, 200])
def test_the_next_command_can_be_pasted_and_is_never_broken(width):
    summary = summaries.slow_loader()
    directory = f"/my data/{'deep/' * 20}run"
    command = f"trainprof report '{directory}' --html"
    far = replace(summary, run=replace(summary.run, directory=directory))
    for color in (False, True):
        *_, last = page(far, width, color=color).removesuffix("\n").split("\n")
        assert command in last


def test_a_failed_script_gets_a_line_below_its_traceback():
    summary = summaries.slow_loader()
    failed = replace(summary, run=replace(summary.run, exit=Exit(1, None, "exception", "KeyError")))
    [line] = terminal.render_after_run(failed, Page(80)).splitlines()
    assert "train.py failed with KeyError after 58.4 s" in line
    assert line.endswith("More: trainprof report train-20261121-034012-7f3a")
    none = replace(failed, training=replace(failed.training, steps=0))
    assert "no backward. More: " in terminal.render_after_run(none, Page(80))
    whole = page(summary)
    assert terminal.render_after_run(summary, Page(80)) == whole
    assert page(failed).count("\n") > 10


@pytest.mark.parametrize("width", [80, 100, 140])
def test_a_long_path_is_not_broken_in_a_word(width):
    summary = summaries.slow_loader()
    site = f"/home/user/{'projects/' * 20}train.py:41"
    [finding] = summary.findings
    far = replace(summary, findings=[replace(finding, site=site, title=f"it waits at {site}")])
    far = replace(far, verdict=replace(far.verdict, headline=f"Data-bound at {site}."))
    for verbose in (False, True):
        text = page(far, width, verbose=verbose)
        assert "projects/train.py:41" in text
        assert not re.search(r"\n *[a-z/]*jects/", text.replace("projects", "project s"))
