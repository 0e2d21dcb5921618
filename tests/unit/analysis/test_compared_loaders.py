"""Loaders side by side: each under a name of its own, though one line built several."""

from __future__ import annotations

import json
from dataclasses import replace

from support import summaries
from support.compared_runs import made_up

from trainprof.analysis.comparison import Comparison, compare, to_jsonable
from trainprof.analysis.loader_figures import Loader
from trainprof.report import comparison_markdown, comparison_page


def loader(role: str, batches: int, wait_s: float, site: str = "data.py:12") -> Loader:
    plain = summaries.loader(site, role=role, iterations=batches)
    return replace(plain, wait_s=summaries.statistics(wait_s))


def compared(*loaders: Loader) -> Comparison:
    summary = replace(summaries.slow_loader(), loaders=list(loaders))
    return compare([made_up(summary, "a")], [made_up(summary, "b")])


def waits(found: Comparison) -> dict[str, float | None]:
    """Returns them by name; the JSON has no name twice."""
    metrics = json.loads(json.dumps(to_jsonable(found)))["metrics"]
    names = [one["name"] for one in metrics]
    assert len(set(names)) == len(names)
    return {one["name"]: one["base"] for one in metrics if one["name"].endswith("].wait_s")}


def test_loaders_of_one_line_are_told_apart_by_their_use_and_their_number() -> None:
    found = compared(
        loader("evaluation", 80, 0.3),
        loader("training", 90, 0.2),
        loader("training", 100, 0.1),
        loader("evaluation", 70, 0.4),
    )
    assert waits(found) == {
        "loaders[data.py:12].wait_s": 0.1,
        "loaders[data.py:12, 2].wait_s": 0.2,
        "loaders[data.py:12, evaluation].wait_s": 0.3,
        "loaders[data.py:12, evaluation, 2].wait_s": 0.4,
    }


def test_loaders_of_lines_of_their_own_keep_their_names() -> None:
    found = compared(loader("training", 9, 0.1), loader("evaluation", 9, 0.2, "data.py:40"))
    assert waits(found) == {
        "loaders[data.py:12].wait_s": 0.1,
        "loaders[data.py:40].wait_s": 0.2,
    }
    alone = compared(loader("evaluation", 9, 0.2), loader("evaluation", 8, 0.3))
    assert list(waits(alone)) == ["loaders[data.py:12].wait_s", "loaders[data.py:12, 2].wait_s"]


def test_each_has_a_table_of_its_own_on_the_page() -> None:
    found = compared(loader("training", 90, 0.1), loader("evaluation", 9, 0.2, "data.py:12"))
    short = comparison_page.render([found], width=100, color=False)
    assert short.count("wait for a batch") == 1
    assert "200 ms" not in short
    whole = comparison_page.render([found], width=100, color=False, verbose=True)
    assert "Loader data.py:12 " in whole
    assert "data.py:12, evaluation" in whole
    assert whole.count("wait for a batch") == 2
    markdown = comparison_markdown.render([found], verbose=True)
    assert "Loader data.py:12, evaluation" in markdown
