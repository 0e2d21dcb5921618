"""The GPUs on the page: a line each on the short one, every figure and gap on the verbose one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from rich.cells import cell_len
from support import summaries
from support.summaries import GIB, gpu, utilization

from trainprof.analysis.machine.gpu_summary import Energy, Gpu
from trainprof.analysis.summary.run_summary import RunSummary
from trainprof.report import markdown
from trainprof.report.page import page as terminal
from trainprof.report.page.gpu import gpu_details, gpus_section
from trainprof.report.text.layout import Page

Golden = Callable[[str, str], None]

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


def beside(*gpus: Gpu, energy: Energy | None = None, **changes: object) -> RunSummary:
    base = summaries.accelerator()
    system = summaries.system(gpus=list(gpus), energy=energy, **changes)
    return replace(base, system=system, epochs=[summaries.epoch(i, 20.0, 3.0) for i in range(2)])


def lines(summary: RunSummary, width: int = 80, **options: bool) -> list[str]:
    page = Page(width=width, unicode=True, verbose=False)
    return [line.plain for line in gpus_section(summary, page, **options)]


def details(summary: RunSummary, width: int = 80) -> str:
    page = Page(width=width, unicode=True, verbose=True)
    return "\n".join(line.plain for line in gpu_details(summary, page)) + "\n"


def mixed() -> RunSummary:
    return beside(
        everything(),
        divided(),
        gpu(2, **HIDDEN, utilization=utilization({10: 1.0})),
        energy=Energy(22.4, "estimated", [0, 1], 1234.0),
    )


def test_a_line_for_each_gpu_in_eighty_columns() -> None:
    assert lines(mixed()) == [
        "GPU     kernel ran      memory peak  power  of limit        energy  throttled",
        "0             76 %  12.3 GiB (15 %)  311 W      44 %       11.2 Wh       12 %",
        "NVML 1   n/a (MIG)  12.3 GiB (15 %)  311 W      44 %  11.2 Wh est.        n/a",
        "           22.4 Wh est. on 2 GPUs, 1,234 samples/Wh,",
        "           1 GPU not visible to the script",
    ]


def test_one_gpu_is_two_lines() -> None:
    assert lines(beside(gpu(utilization=BUSY))) == [
        "GPU  kernel ran      memory peak  power  of limit   energy  hottest",
        "0          76 %  12.3 GiB (15 %)  311 W      44 %  11.2 Wh     64 C",
    ]


def test_no_gpu_is_no_line() -> None:
    assert lines(beside()) == []
    assert details(beside()) == "\n"


def test_the_numbers_are_those_of_the_script() -> None:
    told = lines(beside(gpu(0, logical_index=1), gpu(1, logical_index=0)))
    assert [line.split("  ")[0] for line in told[1:]] == ["1 (NVML 0)", "0 (NVML 1)"]


def test_a_gpu_that_the_script_cannot_see_is_marked() -> None:
    told = beside(gpu(0, **HIDDEN), gpu(1, logical_index=0))
    assert lines(told)[-1] == "           1 GPU not visible to the script"
    assert len(lines(told)) == 3
    assert "NVML 0     Stub GPU 80GB, GPU-0, NVML's number 0, not visible" in details(told)


def test_where_it_sees_none_that_is_all_there_is_to_say() -> None:
    assert lines(beside(gpu(0, **HIDDEN))) == ["GPUs       1 GPU not visible to the script"]


def test_one_that_it_was_on_is_not_hidden_whatever_its_environment_said() -> None:
    told = beside(gpu(0, **{**HIDDEN, "is_used": True}))
    assert lines(told)[1].startswith("NVML 0")
    assert "used by the script" in details(told)


def test_the_order_is_called_assumed_where_another_gpu_may_be_meant() -> None:
    assumed = {"is_number_assumed": True}
    note = "the order of GPUs is assumed: CUDA_DEVICE_ORDER is not PCI_BUS_ID"
    alike = beside(gpu(0, **assumed), gpu(1, **assumed))
    assert note not in "\n".join(lines(alike))
    assert note in details(alike)
    differ = beside(gpu(0, **assumed), gpu(1, name="Another", **assumed))
    assert note in "\n".join(lines(differ))
    known = beside(gpu(0), gpu(1, name="Another"))
    assert note not in "\n".join(lines(known)) + details(known)


def test_many_gpus_do_not_fill_the_page() -> None:
    eight = beside(*map(gpu, range(8)))
    assert len(lines(eight)) == 1 + 4 + 1
    assert lines(eight)[-1].strip() == "and 4 more with --verbose"
    assert len(lines(eight, is_brief=True)) == 1 + 1 + 1
    assert details(eight).count("energy 11.2 Wh") == 8
    page = terminal.render(eight, width=80, color=False)
    assert page.count("\n") <= 30


def test_little_energy_is_told_in_a_smaller_unit() -> None:
    assert "37.5 mWh" in lines(beside(gpu(energy_wh=0.0375)))[1]


def test_the_verbose_page_has_every_figure(golden: Golden) -> None:
    golden("gpus_verbose_80.txt", details(mixed()))


def test_the_wide_verbose_page(golden: Golden) -> None:
    golden("gpus_verbose_120.txt", details(mixed(), 120))


@pytest.mark.parametrize("width", [30, 60, 80, 120])
@pytest.mark.parametrize("verbose", [False, True])
def test_no_line_is_wider_than_the_page(width: int, verbose: bool) -> None:
    page = terminal.render(mixed(), width=width, color=False, verbose=verbose)
    assert all(cell_len(line) <= width for line in page.split("\n")[:-2])


def test_why_there_is_none_is_told_in_full() -> None:
    told = beside(gpus_not_observed="NVML: Driver Not Loaded")
    assert details(told) == "GPUs       none seen: NVML: Driver Not Loaded\n"


def test_why_no_more_samples_came_is_told_beside_those_that_did() -> None:
    told = beside(gpu(), gpus_not_observed="every GPU is lost")
    assert "GPUs       no more samples: every GPU is lost\n" in details(told)


def test_an_ascii_page_is_ascii() -> None:
    page = terminal.render(mixed(), width=80, color=False, verbose=True, unicode=False)
    assert page.isascii()
    assert "\\x" not in page


@pytest.mark.parametrize("strange", [float("nan"), float("inf"), -1.0, 0.0])
def test_figures_that_nothing_can_measure_break_no_page(strange: float) -> None:
    summary = summaries.with_every_float(mixed(), strange)
    page = terminal.render(summary, width=80, color=False, verbose=True)
    assert "nan" not in page
    assert "inf " not in page
    markdown.render(summary)


def test_markdown_has_the_same_table() -> None:
    text = markdown.render(mixed())
    assert "| GPU | kernel ran | memory peak | power |" in text
    assert "| 0 | 76 % | 12.3 GiB (15 %) | 311 W | 44 % | 11.2 Wh | 64 C | 12 % |" in text
    assert "22.4 Wh est. on 2 GPUs, 1,234 samples/Wh." in text
    assert "NVML 2" not in text
    assert "| GPU |" not in markdown.render(summaries.slow_loader())
