"""The GPUs on the page: a line each on the short one, every figure and gap on the verbose one."""

from __future__ import annotations

from dataclasses import replace

import pytest
from rich.cells import cell_len
from support import summaries
from support.summaries import GIB, gpu, utilization

from trainprof.analysis.summary.device import Energy, Gpu
from trainprof.analysis.summary.run_summary import RunSummary
from trainprof.report import markdown
from trainprof.report.page import page as terminal
from trainprof.report.page.gpu import gpu_details, gpus_section
from trainprof.report.text.layout import Page

BUSY = utilization({0: 0.1, 2: 0.1, 8: 0.4, 9: 0.3, 10: 0.1})
HIDDEN = {"logical_index": None, "is_visible": False, "is_used": False}


def everything() -> Gpu:
    return gpu(
        utilization=BUSY,
        throttled_share=0.12,
        processes=[
            {"pid": 4711, "role": "other", "bytes": 30 * GIB},
            {"pid": 4120, "role": "own", "bytes": 12 * GIB},
            {"pid": 9, "role": "unknown", "bytes": None},
        ],
    )


def divided() -> Gpu:
    return gpu(
        1,
        logical_index=None,
        is_visible=None,
        is_used=None,
        utilization=None,
        energy_source="estimated",
        mig=[
            {"uuid": "MIG-1", "memory_bytes": 20 * GIB, "logical_index": 0},
            {"uuid": "MIG-2", "memory_bytes": 20 * GIB, "logical_index": None},
        ],
        not_observed={"utilization": "Not Supported (MIG is on)", "energy": "Unknown Error"},
    )


def with_gpus(*gpus: Gpu, energy: Energy | None = None, **changes: object) -> RunSummary:
    system = summaries.system(gpus=list(gpus), energy=energy, **changes)
    epochs = [summaries.epoch(index, 20.0, 3.0) for index in range(2)]
    return replace(summaries.accelerator(), system=system, epochs=epochs)


def lines(summary: RunSummary, width: int = 80, **options: bool) -> list[str]:
    page = Page(width=width, unicode=True, verbose=False)
    return [line.plain for line in gpus_section(summary, page, **options)]


def details(summary: RunSummary, width: int = 80) -> str:
    page = Page(width=width, unicode=True, verbose=True)
    return "\n".join(line.plain for line in gpu_details(summary, page)) + "\n"


MIXED = with_gpus(
    everything(),
    divided(),
    gpu(2, **HIDDEN, utilization=utilization({10: 1.0})),
    energy=Energy(22.4, "estimated", [0, 1], 1234.0),
)
ASSUMED = {"is_number_assumed": True}
RUNS = {
    "mixed": MIXED,
    "one": with_gpus(gpu(utilization=BUSY)),
    "other numbers": with_gpus(gpu(0, logical_index=1), gpu(1, logical_index=0)),
    "one hidden": with_gpus(gpu(0, **HIDDEN), gpu(1, logical_index=0)),
    "all hidden": with_gpus(gpu(0, **HIDDEN)),
    "hidden but used": with_gpus(gpu(0, **{**HIDDEN, "is_used": True})),
    "order assumed, alike": with_gpus(gpu(0, **ASSUMED), gpu(1, **ASSUMED)),
    "order assumed": with_gpus(gpu(0, **ASSUMED), gpu(1, name="Another", **ASSUMED)),
    "order known": with_gpus(gpu(0), gpu(1, name="Another")),
    "little energy": with_gpus(gpu(energy_wh=0.0375)),
    "none seen": with_gpus(gpus_not_observed="NVML: Driver Not Loaded"),
    "no more samples": with_gpus(gpu(), gpus_not_observed="every GPU is lost"),
}


def test_gpus(gallery, golden):
    gallery("gpus.txt", {title: lines(summary) for title, summary in RUNS.items()})
    gallery("gpus_verbose.txt", {title: details(run) for title, run in RUNS.items()})
    golden("gpus_verbose_120.txt", details(MIXED, 120))


def test_many_gpus_do_not_fill_the_page():
    eight = with_gpus(*map(gpu, range(8)))
    assert len(lines(eight)) == 1 + 4 + 1
    assert len(lines(eight, is_brief=True)) == 1 + 1 + 1
    assert details(eight).count("energy 11.2 Wh") == 8
    assert terminal.render(eight, width=80, color=False).count("\n") <= 30
    assert lines(with_gpus()) == []
    assert details(with_gpus()) == "\n"


@pytest.mark.parametrize("width", [30, 60, 80, 120])
@pytest.mark.parametrize("verbose", [False, True])
def test_no_line_is_wider_than_the_page(width, verbose):
    page = terminal.render(MIXED, width=width, color=False, verbose=verbose)
    assert all(cell_len(line) <= width for line in page.split("\n")[:-2])


def test_an_ascii_page_is_ascii():
    page = terminal.render(MIXED, width=80, color=False, verbose=True, unicode=False)
    assert page.isascii()
    assert "\\x" not in page


@pytest.mark.parametrize("strange", [float("nan"), float("inf"), -1.0, 0.0])
def test_figures_that_nothing_can_measure_break_no_page(strange):
    summary = summaries.with_every_float(MIXED, strange)
    page = terminal.render(summary, width=80, color=False, verbose=True)
    assert "nan" not in page
    assert "inf " not in page
    markdown.render(summary)


def test_markdown_has_the_same_table():
    text = markdown.render(MIXED)
    assert "| 0 | 76 % | 12.3 GiB (15 %) | 311 W | 44 % | 11.2 Wh | 64 C | 12 % |" in text
    assert "22.4 Wh est. on 2 GPUs, 1,234 samples/Wh." in text
    assert "NVML 2" not in text
    assert "| GPU |" not in markdown.render(summaries.slow_loader())
