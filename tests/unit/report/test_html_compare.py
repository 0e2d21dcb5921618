"""Pages of `compare` and `tune`: bars as long as their figures, figures as in the JSON."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from xml.etree import ElementTree

import pytest
from support import summaries
from support.compared_runs import faster_loader, made_up, repeated, single
from support.planted_trials import (
    FakeRunner,
    Planted,
    base_summary,
    plan_of,
    search_of,
    threads,
    workers,
)

from trainprof.analysis.statistics.speedup import NO_VISIBLE_DIFFERENCE, SLOWER
from trainprof.analysis.summary.run_summary import RunSummary
from trainprof.analysis.summary.tune import CEILING, FAILED, LOADER_ALONE, Times
from trainprof.compare.comparison import Comparison, compare
from trainprof.report import comparison as compared_words
from trainprof.report.html import compared, tuned
from trainprof.report.html.bars import Bar, BarRow, Reference, chart
from trainprof.report.text.units import seconds
from trainprof.tune.results import summary_of_tune

EVIL = "<script>x</script>\"'--></title>\x1b[31m\u202e&{{ 7*7 }}"


def parsed(page: str) -> ElementTree.Element:
    """Returns the page's body, which is well-formed XML too."""
    return ElementTree.fromstring(re.search(r"<main.*</main>", page, re.DOTALL)[0])


def drawings(page: str) -> dict[str, ElementTree.Element]:
    """Returns the drawings by their text alternative."""
    images = [svg for svg in parsed(page).iter("svg") if svg.get("role") == "img"]
    named = {svg.attrib["aria-label"]: svg for svg in images}
    assert len(named) == len(images)
    return named


def starting(page: str, label: str) -> ElementTree.Element:
    (drawing,) = (svg for words, svg in drawings(page).items() if words.startswith(f"{label}: "))
    return drawing


def widths(drawing: ElementTree.Element) -> list[float]:
    """Returns the lengths of a drawing's bars in percent of its width."""
    bars = [rect for rect in drawing.iter("rect") if rect.attrib["class"].startswith("bar ")]
    return [float(bar.attrib["width"].rstrip("%")) for bar in bars]


def ends(drawing: ElementTree.Element) -> tuple[float, float]:
    """Returns the ends of a drawing's only whisker, which has caps there."""
    lines = [line for line in drawing.iter("line") if line.get("class") == "whisker"]
    places = [[float(line.attrib[name].rstrip("%")) for name in ("x1", "x2")] for line in lines]
    (low, high), *caps = places
    assert caps == [[low, low], [high, high]]
    return low, high


def table(page: str, index: int) -> list[list[str]]:
    body = list(parsed(page).iter("tbody"))[index]
    return [["".join(cell.itertext()) for cell in row] for row in body]


def slower() -> Comparison:
    return single(1.12, SLOWER)


def tune_summary() -> RunSummary:
    """Two worker counts that are faster, threads that are slower, and a failure."""
    planted = Planted(
        lambda o: 0.005 if "num_workers" in o else 0.013 if o else 0.010,
        failing={"num_workers=16": FAILED},
    )
    plan = plan_of(workers(2), workers(16), threads(1))
    measured = search_of(FakeRunner(planted), lambda base, free_s: plan, budget_s=600.0).run()
    return summary_of_tune(
        base_summary(), measured, name="tune-x", directory="runs/tune-x", budget_s=600.0
    )


def changed(summary: RunSummary, trial: str, /, **changes: object) -> RunSummary:
    trials = [replace(row, **changes) if row.name == trial else row for row in summary.trials]
    return replace(summary, trials=trials)


def test_a_scale_shows_all_values_and_cuts_very_wide_intervals():
    rows = [
        BarRow("a", (Bar("noise", 4.0, 3.0, 5.0),), "4x"),
        BarRow("b", (Bar("noise", None),), "-"),
    ]
    shown = chart(rows, str, [Reference("ceiling", 21.0, "21x")])
    assert shown.top == pytest.approx(5.3)
    assert (shown.at(0.0), shown.at(2.65), shown.at(99.0)) == (0.0, 50.0, 100.0)
    assert shown.is_beyond(21.0)
    assert not shown.is_beyond(5.0)
    wide = chart([BarRow("a", (Bar("noise", 4.0, 0.1, 400.0),), "4x")], str)
    assert wide.is_beyond(400.0)
    assert wide.top == pytest.approx(4.24)
    ticks = [
        [tick for tick, _ in chart([BarRow("", (Bar("", top),), "")], str).ticks] for top in TOPS
    ]
    assert all(3 <= len(each) <= 5 and each[0] == 0 and each[-1] > 0 for each in ticks)


TOPS = (1e-6, 0.0314, 0.99, 1.0, 2.0, 7.3, 951.0)


@pytest.mark.parametrize("make", [repeated, slower])
def test_bars_of_a_comparison_are_as_long_as_the_json_says(make):
    sides = make()
    plain, page = compared_words.to_jsonable(sides), compared.render([sides])
    speed = next(iter(drawings(page).values()))
    reference = next(x for x in speed.iter("line") if x.attrib["class"].startswith("reference"))
    base = float(reference.attrib["x1"].rstrip("%"))  # 1x
    low, mid, high = (plain["speedup"][bound] for bound in ("low", "mid", "high"))
    assert widths(speed) == pytest.approx([mid * base], abs=0.01)
    assert ends(speed) == pytest.approx((low * base, high * base), abs=0.01)

    metrics = {metric["name"]: metric for metric in plain["metrics"]}
    step = metrics["step_s"]
    pair = starting(page, "step (mean)")
    scale = widths(pair)[0] / step["base"]
    assert widths(pair)[1] == pytest.approx(step["other"] * scale, abs=0.01)
    bounds = [step["base"] * (1 + step[bound]) * scale for bound in ("low", "high")]
    assert ends(pair) == pytest.approx(bounds, abs=0.01)
    for key, label in (("forward", "forward"), ("backward", "backward")):
        both = [metrics[f"per_step_s.{key}"][side] * scale for side in ("base", "other")]
        assert widths(starting(page, label)) == pytest.approx(both, abs=0.01)


def test_each_of_several_runs_a_side_has_its_bar():
    sides = repeated()
    plain, page = compared_words.to_jsonable(sides), compared.render([sides])
    runs = [*plain["base"]["runs"], *plain["other"]["runs"]]
    lengths = [widths(starting(page, run["name"]))[0] for run in runs]
    longest = max(run["step_s"] for run in runs)
    assert lengths == pytest.approx(
        [max(lengths) * run["step_s"] / longest for run in runs], abs=0.01
    )
    assert [[row[0], row[4]] for row in table(page, 1)] == [
        [run["name"], seconds(run["step_s"])] for run in runs
    ]
    assert "Mean step of each run" not in compared.render([slower()])


def test_the_table_of_a_comparison_has_every_figure_of_the_json():
    for sides in (repeated(), slower()):
        rows = table(compared.render([sides]), 0)
        assert len(rows) == len(compared_words.to_jsonable(sides)["metrics"])
        assert [row[:5] for row in rows] == [
            [row.label.strip(), *row[1:5]] for row in compared_words.rows(sides, verbose=True)
        ]


def test_a_comparison_that_cannot_be_judged_says_why_and_draws_no_interval():
    base = summaries.slow_loader()
    few = replace(base, training=replace(base.training, steady_steps=5))
    sides = compare([made_up(base, "a")], [made_up(few, "b", settings={})], limit=0.05)
    page = compared.render([sides])
    assert "whisker" not in page[page.index("<main") :]
    assert "Not comparable: OTHER has 5 steady steps (6 needed)." in page
    assert "Gate not judged" in page
    lacking = compare([made_up(summaries.sparse(), "a")], [made_up(base, "b")])
    assert not re.search(r"\bNone\b|\bnan\b", compared.render([lacking]))


def test_several_others_share_a_scale():
    page = compared.render([slower(), single(1.006, NO_VISIBLE_DIFFERENCE)])
    assert len(re.findall("<h1", page)) == 1
    speed = [svg for words, svg in drawings(page).items() if words.startswith("healthy-2: 0.")]
    assert [widths(svg)[0] for svg in speed] == pytest.approx(
        [widths(speed[0])[0], widths(speed[0])[0] * 1.12 / 1.006], abs=0.01
    )


def test_bars_of_trials_are_as_long_as_the_summary_says():
    summary = tune_summary()
    page, trials = tuned.render(summary), {row.name: row for row in summary.trials}
    best = trials["num_workers=2"]
    assert best.speedup is not None
    drawing = starting(page, "num_workers=2")
    lines = [x for x in drawing.iter("line") if x.attrib["class"].startswith("reference")]
    base, *bounds = (float(line.attrib["x1"].rstrip("%")) for line in lines)
    assert bounds == pytest.approx(
        [trials[name].speedup.mid * base for name in (CEILING, LOADER_ALONE)], abs=0.01
    )
    assert widths(drawing) == pytest.approx([best.speedup.mid * base], abs=0.01)
    low_high = (best.speedup.low * base, best.speedup.high * base)
    assert ends(drawing) == pytest.approx(low_high, abs=0.01)
    (band,) = (rect for rect in drawing.iter("rect") if rect.get("class") == "predicted")
    x, width = (float(band.attrib[name].rstrip("%")) for name in ("x", "width"))
    assert (x, x + width) == pytest.approx([bound * base for bound in best.predicted], abs=0.01)
    assert widths(starting(page, "num_workers=16")) == []


def test_the_page_of_a_tune_run_has_the_change_every_trial_and_every_failure():
    summary = tune_summary()
    page = tuned.render(summary)
    names, words = [row.name for row in summary.trials], "".join(parsed(page).itertext())
    assert summary.recommended is not None
    assert all(change in words for change in summary.recommended.change)
    rows = table(page, 0)
    assert [row[0].replace("loader alone", LOADER_ALONE) for row in rows] == names
    assert "num_workers=16: failed: ValueError" in words
    order = [label.split(":")[0] for label in drawings(page)]
    assert order == ["num_workers=2", "torch_threads=1", "num_workers=16"]


def test_a_bound_far_away_does_not_make_the_bars_short():
    summary = changed(tune_summary(), CEILING, speedup=Times(19.0, 21.2, 23.0))
    page = tuned.render(summary)
    assert "ceiling 21.2x (right of this scale)" in page
    assert widths(starting(page, "num_workers=2"))[0] > 50
    without = [replace(row, speedup=None, outcome=FAILED) for row in summary.trials]
    page = tuned.render(replace(summary, trials=without, recommended=None))
    assert "Speed compared" not in page


def pages_of_hostile_runs() -> Sequence[str]:
    base = made_up(summaries.hostile(), EVIL, script=EVIL, sources={EVIL: "a"})
    other = made_up(faster_loader(), f"{EVIL}2", script="b.py", sources={EVIL: "b"})
    summary = tune_summary()
    trial = changed(summary, "num_workers=2", name=EVIL, detail=EVIL, refused={EVIL: EVIL})
    best = replace(summary.recommended, name=EVIL, change=[EVIL], cautions=[EVIL])
    run = replace(summary.run, name=EVIL, command=[EVIL])
    return (
        compared.render([compare([base], [other])]),
        tuned.render(replace(trial, recommended=best, run=run)),
    )


def test_hostile_names_are_text():
    for page in pages_of_hostile_runs():
        body = page[page.index("<main") :]
        assert "&lt;script&gt;" in body
        assert not re.search(r"<script>x|[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]", page)
        assert not list(parsed(page).iter("script"))
        assert "{{ 7*7 }}" in body.replace("&#39;", "'")
        assert not re.search(r"<[^>]* (style|on\w+)=", page)
