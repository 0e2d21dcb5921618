"""One loader in full: golden screens, every figure, workers joined by number, odd summaries."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from rich.cells import cell_len
from support import summaries

from trainprof.analysis.summary.json_text import to_jsonable
from trainprof.analysis.summary.run_summary import RunSummary
from trainprof.report import json_text, markdown
from trainprof.report.page import loading
from trainprof.report.page import page as terminal

ALL = {
    "slow_loader": summaries.slow_loader,
    "healthy": summaries.healthy,
    "accelerator": summaries.accelerator,
    "starved": summaries.starved,
    "sparse": summaries.sparse,
    "hostile": summaries.hostile,
}
EACH = [(name, index) for name, make in ALL.items() for index in range(len(make().loaders))]
Golden = Callable[[str, str], None]


def page(summary: RunSummary, index: int = 0, width: int = 80, **options: bool) -> str:
    return loading.render_loader(summary, index, width=width, **{"color": False, **options})


def with_workers(rows: list[dict[str, Any]]) -> RunSummary:
    base = summaries.starved()
    one = base.loaders[0]
    assert one.fetch is not None
    return replace(base, loaders=[replace(one, fetch=replace(one.fetch, per_worker=rows))])


def rows_under(text: str, *headers: str) -> list[list[str]]:
    """The cells of the table with these column headers, split at wide gaps."""
    block = text.split("\n")
    start = next(
        n
        for n, line in enumerate(block)
        if line.split("  ")[0] == headers[0] and all(header in line for header in headers)
    )
    rows = []
    for line in block[start + 1 :]:
        if not line or line.startswith(("  ", headers[0])):
            break
        rows.append(re.split(r" {2,}", line))
    return rows


@pytest.mark.parametrize("width", [80, 120])
def test_screen_is_the_golden_one(width: int, golden: Golden) -> None:
    golden(f"loader_{width}.txt", page(summaries.starved(), width=width))


def test_the_package_that_builds_a_loader_is_named() -> None:
    summary = summaries.starved()
    loaders = [replace(loader, built_by="transformers") for loader in summary.loaders]
    assert "DataLoader, built by transformers," in page(replace(summary, loaders=loaders))
    assert "built by" not in page(summary)


def test_the_markdown_is_the_golden_one(golden: Golden) -> None:
    golden("loader.md", markdown.render_loader(summaries.starved(), 0))


@pytest.mark.parametrize(
    "figure",
    [
        "DataLoader, used for training",
        "batches in a pass 125",
        "batch size 32",
        "workers 4, started by fork",
        "prefetch factor 2",
        "persistent workers no",
        "pinned memory no",
        "initialised 1 time",
        "the batch was there in 12 % of cases",
        "tensors and arrays of a batch 4.60 MiB",
        "no batch was there",
        "taking it over from a worker",
        "drawing its indices",
        "dataset[i], the samples",
        "collate, samples into a batch",
        "worker 1 (pid 4201) was killed by SIGKILL",
    ],
)
def test_every_figure_of_smdebug_is_there(figure: str) -> None:
    text = " ".join(page(summaries.starved()).split())
    assert figure in text
    told = markdown.render_loader(summaries.starved(), 0).replace("\\", "")
    assert figure.lower() in told.lower()


def test_distributions_have_median_tail_and_longest() -> None:
    rows = rows_under(page(summaries.starved()), "How long", "p50", "p95", "p99", "max")
    assert [row[0] for row in rows] == [
        "making an iterator",
        "first batch of a pass",
        "next(iterator), later ones",
        "making a batch",
    ]
    assert rows[2][1:] == ["399", "76.9 ms", "76.9 ms", "140 ms", "154 ms", "360 ms"]


def test_each_worker_has_its_row() -> None:
    text = page(summaries.starved(), width=120)
    times = rows_under(text, "Worker", "busy", "asleep")
    assert [row[0] for row in times] == ["0", "1", "2", "3"]
    assert times[2][:5] == ["2", "100", "99 %", "810 ms", "32.4 s"]


def test_workers_of_several_passes_are_one_row() -> None:
    rows = [summaries.worker(number, 0.2, 10, busy=0.5) for number in (0, 1, 0, 1)]
    text = page(with_workers(rows), width=120)
    assert [row[:4] for row in rows_under(text, "Worker", "busy")] == [
        ["0", "20", "50 %", "200 ms"],
        ["1", "20", "50 %", "200 ms"],
    ]


def test_what_no_worker_tells_has_no_column() -> None:
    rows = [summaries.worker(0, 0.2, 10) | {"reading_s": None}]
    text = page(with_workers(rows), width=120)
    heads = " ".join(line for line in text.split("\n") if line.startswith("Worker"))
    assert "RSS" in heads
    assert "I/O" not in heads


def test_the_slowest_samples_are_listed_by_index() -> None:
    rows = rows_under(page(summaries.starved()), "Sample", "took")
    assert rows == [
        ["dataset[307]", "830 ms", "64.5", "2", "4202", "31.2 s"],
        ["number 5 of its batch", "310 ms", "24.1", "1", "4201", "31.2 s"],
    ]


def test_a_limit_that_is_not_known_says_so() -> None:
    base = summaries.starved()
    unknown = replace(base, loaders=[replace(base.loaders[0], bound=None)])
    assert "Limit      not known" in page(unknown)


@pytest.mark.parametrize("width", [20, 30, 60, 80, 120, 200])
@pytest.mark.parametrize(("name", "index"), EACH)
def test_no_line_is_wider_than_the_page(name: str, index: int, width: int) -> None:
    for line in page(ALL[name](), index, width).split("\n"):
        assert cell_len(line) <= width
        assert line == line.rstrip()


@pytest.mark.parametrize(("name", "index"), EACH)
def test_ascii_pages_are_ascii_and_without_colour_there_is_no_escape(name: str, index: int) -> None:
    assert page(ALL[name](), index, unicode=False).isascii()
    text = page(ALL[name](), index)
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", text)
    coloured = page(ALL[name](), index, color=True)
    assert re.sub(r"\x1b\[[0-9;]*m", "", coloured) == text


@pytest.mark.parametrize("index", [0, 1])
def test_what_is_missing_is_not_measured(index: int) -> None:
    for text in (
        page(summaries.sparse(), index),
        markdown.render_loader(summaries.sparse(), index),
    ):
        assert "not measured" in text
        assert "None" not in text


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 0.0, -1.0])
@pytest.mark.parametrize(("name", "index"), EACH)
def test_odd_numbers_do_not_stop_the_page(name: str, index: int, value: float) -> None:
    odd = summaries.with_every_float(ALL[name](), value)
    for text in (page(odd, index), markdown.render_loader(odd, index)):
        assert not re.search(r"\b(nan|inf)\b", text)


def test_hostile_strings_are_shown_not_obeyed() -> None:
    text = markdown.render_loader(summaries.hostile(), 0)
    assert "<" not in text
    assert "`" not in text
    assert "@team" not in text
    assert "[red]evil[/red]" in page(summaries.hostile())


def test_the_verbose_page_holds_every_loader_in_full() -> None:
    text = terminal.render(summaries.healthy(), width=80, color=False, verbose=True)
    assert "Loader 0 at healthy.py:38" in text
    assert "Loader 1 at healthy.py:44" in text


def test_the_json_of_a_loader_is_its_entry() -> None:
    summary = summaries.starved()
    told = json.loads(json_text.render_loader(summary, 0))
    assert told == to_jsonable(summary)["loaders"][0]
    assert told["bound"]["by"] == "one worker's latency"
