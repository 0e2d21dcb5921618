"""What is made of files that hold more than is used of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from support.cases import Planted, case_of
from support.found import hot_line, only

from trainprof.analysis.loaded_views import told_views, views_at
from trainprof.analysis.loader_figures import LoadedViews
from trainprof.analysis.names import Sites

SITES = Sites({7: ["/work/data.py", 12, "decode"]}, "/work")
HERE = {"site": 7, "files": 4, "held_bytes": 4 << 20, "used_bytes": 4 << 10}
VIEWS = LoadedViews("data.py:12", 4, 1 << 20, 1 << 10)


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        ([], []),
        ([{"loaded_views": [HERE]}], [VIEWS]),
        # The last one counts, wherever it stands.
        (
            [
                {"loaded_views": [HERE], "number": 2},
                {"loaded_views": [{**HERE, "files": 1}], "number": 1},
            ],
            [VIEWS],
        ),
        # Damage.
        ([{"loaded_views": 3}], []),
        ([{"loaded_views": [3, {"site": 7}]}], []),
        ([{"loaded_views": [{**HERE, "site": 8}]}], []),
        ([{"loaded_views": [{**HERE, "files": 0}]}], []),
        ([{"loaded_views": [{**HERE, "held_bytes": 1 << 10}]}], []),
        ([{"loaded_views": [{**HERE, "used_bytes": -1}]}], []),
        ([{"loaded_views": [{**HERE, "used_bytes": "all"}]}], []),
    ],
)
def test_what_a_process_told(told: list[Any], expected: list[LoadedViews]) -> None:
    assert told_views(told, SITES) == expected


def test_of_several_processes_the_one_that_loaded_most_counts() -> None:
    more = replace(VIEWS, files=32)
    elsewhere = replace(VIEWS, site="data.py:60")
    lines = [replace(hot_line("making batches"), site="data.py:30"), hot_line("making batches")]
    assert views_at(lines, [elsewhere, VIEWS, more, VIEWS]) == more
    assert views_at(lines[:1], [VIEWS]) is None
    assert views_at([], [VIEWS]) is None


def test_the_costly_line_says_what_its_files_hold_and_how_to_write_them() -> None:
    planted = Planted(fetch_s=0.09, running=1.0, compute_s=0.01, cores=2)
    line = hot_line("making batches", share=0.98)
    planted.loader = replace(planted.loader, hot_lines=[line], loaded_views=VIEWS)
    finding = only(case_of(planted))
    head = (
        "98 % of making a batch goes to data.py:12 (decode), whose files hold 1.00 MiB each for "
        "1.00 KiB of tensors; the training process makes"
    )
    assert finding.title.startswith(head)
    first = (
        "cheaper samples first: data.py:12 (decode), of files saved with tensor.clone() "
        "(torch.save keeps all that lies behind a view); meanwhile DataLoader("
    )
    assert finding.advice.startswith(first)


def test_another_line_says_nothing_of_them() -> None:
    planted = Planted(fetch_s=0.09, running=1.0, compute_s=0.01, cores=2)
    other = replace(VIEWS, site="data.py:60")
    line = hot_line("making batches", share=0.98)
    planted.loader = replace(planted.loader, hot_lines=[line], loaded_views=other)
    finding = only(case_of(planted))
    assert "files" not in finding.title + finding.advice
