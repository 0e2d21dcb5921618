"""The block on data loading: where it stands, what of it fits, and who is left in peace."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from rich.cells import cell_len
from support import summaries

from trainprof.analysis.summary.run_summary import RunSummary
from trainprof.report.page import page as terminal
from trainprof.report.page.loading import loading_section, wanted_lines
from trainprof.report.text.layout import Page

ALL = {
    "slow_loader": summaries.slow_loader,
    "killed_for_memory": summaries.killed_for_memory,
    "accelerator": summaries.accelerator,
    "starved": summaries.starved,
    "sparse": summaries.sparse,
    "hostile": summaries.hostile,
}
PAGE = Page(width=80, unicode=True, verbose=False)


def block(summary: RunSummary, room: int = 99, page: Page = PAGE) -> list[str]:
    return [line.plain for line in loading_section(summary, page, room)]


def test_the_block_says_where_the_time_goes_and_what_bounds_it() -> None:
    assert block(summaries.accelerator()) == [
        "Data loading at train.py:41: 8 workers, 449 ms a batch each",
        "  running (on a core)            ██████▏                        98.8 ms   22.0 %",
        "  asleep (sleep, lock, network)  █████████████████████▉        350.2 ms   78.0 %",
        "  The dataset takes 99 % of that, collating 1 %; workers were busy 98 % of the",
        "  time.",
        "  Training waits 5.60 ms for it, 5.21 ms until it is made; the batch was there",
        "  in 61 % of cases.",
        "  Limit: 8 workers give a batch per 60.4 ms, training takes one per 55.2 ms.",
    ]


@pytest.mark.parametrize("name", ALL)
def test_what_is_of_most_use_stays_where_there_is_little_room(name: str) -> None:
    summary = ALL[name]()
    whole = block(summary)
    wanted = wanted_lines(summary, PAGE)
    assert block(summary, wanted)[:wanted] == whole[:wanted]
    shorter = [len(block(summary, room)) for room in range(wanted + 1)]
    heading = shorter[0]
    assert all(lines <= max(room, heading) for room, lines in enumerate(shorter))
    for room in range(wanted):
        assert block(summary, room)[:heading] == whole[:heading]


def test_the_limit_outlives_the_bars() -> None:
    accelerator = summaries.accelerator()
    assert [line.strip() for line in block(accelerator, 2)][1].startswith("Limit: ")
    assert "█" not in "".join(block(accelerator, 3))
    assert "█" in "".join(block(accelerator, 4))


def test_a_worker_that_died_is_told_before_anything_else() -> None:
    assert block(summaries.starved(), 2)[1] == (
        "  Worker 1 (pid 4201) was killed by SIGKILL 2.84 min into the run."
    )


def test_parts_that_have_no_room_for_bars_are_said_in_words() -> None:
    text = " ".join(block(summaries.starved(), 7))
    assert "Running (on a core) 61 %, waiting for a free core 11 %" in text


def test_a_worker_that_died_is_told() -> None:
    text = " ".join(block(summaries.starved()))
    assert "Worker 1 (pid 4201) was killed by SIGKILL 2.84 min into the run." in text


def test_a_loader_that_keeps_up_gets_one_line_at_most() -> None:
    assert block(summaries.healthy()) == [
        "Data loading at healthy.py:38 keeps up: the batch was there in 99 % of cases"
    ]
    assert block(summaries.healthy(), 0) == []
    wide = Page(width=120, unicode=True, verbose=False)
    assert block(summaries.healthy(), page=wide) == [
        "Data loading at healthy.py:38 keeps up: the batch was there in 99 % of cases, "
        "workers were busy 31 % of the time"
    ]
    assert wanted_lines(summaries.healthy(), PAGE) == 0


def test_a_long_place_gives_way_to_what_is_said_of_it() -> None:
    healthy = summaries.healthy()
    far = replace(healthy.loaders[0], site=f"{'deep/' * 9}train.py:38")
    assert block(replace(healthy, loaders=[far])) == [
        "Data loading keeps up: the batch was there in 99 % of cases"
    ]


def test_a_loader_without_workers_that_keeps_up_needs_no_line() -> None:
    quick = replace(
        summaries.slow_loader().loaders[0],
        wait_total_s=0.1,
        wait_s=summaries.statistics(0.0004, n=248),
        first_batch_s=None,
    )
    assert block(replace(summaries.slow_loader(), loaders=[quick])) == []


def test_training_comes_before_evaluation() -> None:
    base = summaries.starved()
    validation = replace(base.loaders[0], id=1, site="val.py:9", role="evaluation")
    both = replace(base, loaders=[validation, *base.loaders])
    headings = [line for line in block(both) if line.startswith("Data loading")]
    assert [line.split(":")[0] for line in headings] == [
        "Data loading at cache.py",
        "Data loading at val.py",
    ]
    first_alone = block(both, wanted_lines(both, PAGE))
    assert sum(line.startswith("Data loading") for line in first_alone) == 1


@pytest.mark.parametrize("width", [30, 60, 80, 120])
@pytest.mark.parametrize("name", ALL)
def test_no_line_is_wider_than_the_page(name: str, width: int) -> None:
    for room in (0, 4, 99):
        page = Page(width=width, unicode=True, verbose=False)
        assert all(cell_len(line) <= width for line in block(ALL[name](), room, page))


def test_nothing_measured_is_never_zero() -> None:
    text = " ".join(block(summaries.sparse()))
    assert "not measured" in text
    assert not re.search(r"\b(None|nan|inf|0 s|0\.0)\b", text)


def test_sections_give_way_to_the_block_of_the_loader_that_training_waits_for() -> None:
    text = terminal.render(summaries.starved(), width=80, color=False)
    assert "  Limit: 4 workers" in text
    assert "Syncs" not in text
    nothing_found = replace(summaries.slow_loader(), findings=[])
    wide = terminal.render(nothing_found, width=120, color=False)
    assert wide.index("Loader ") < wide.index("Data loading at") < wide.index("System")
