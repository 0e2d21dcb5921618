"""Comparisons as they are shown: golden pages, widths, hostile strings, sums."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace

import pytest
from rich.cells import cell_len
from support import summaries
from support.compared_runs import made_up, repeated, single

from trainprof.analysis.compared_figures import Metric
from trainprof.analysis.comparison import Comparison, compare
from trainprof.analysis.gate import judged
from trainprof.analysis.run_figures import Exit
from trainprof.analysis.speedup import FASTER, NO_VISIBLE_DIFFERENCE, SLOWER
from trainprof.report import comparison_json, comparison_markdown, comparison_page

Golden = Callable[[str, str], None]

SCREENS = {
    "repeated": repeated,
    "slower": lambda: single(1.12, SLOWER),
    "alike": lambda: single(1.006, NO_VISIBLE_DIFFERENCE),
}


def too_noisy(found: Comparison) -> Comparison:
    """Returns it as `compare` does where the interval is too wide for a verdict."""
    speedup = found.speedup.unless_too_noisy()
    metrics = [
        replace(one, verdict=speedup.verdict) if one.name == "step_s" else one
        for one in found.metrics
    ]
    return replace(found, speedup=speedup, metrics=metrics)


def unlike() -> Comparison:
    """Another batch size, another torch, and too few steps to tell."""
    base = summaries.slow_loader()
    loader = replace(base.loaders[0], batch_size=64)
    other = replace(
        base,
        run=replace(base.run, versions=base.run.versions | {"torch": "2.9.1"}),
        training=replace(base.training, steady_steps=12),
        loaders=[loader],
    )
    return compare([made_up(base, "a")], [made_up(other, "b")])


def page(found: Comparison, width: int = 80, **options: bool) -> str:
    return comparison_page.render([found], width=width, **{"color": False, **options})


@pytest.mark.parametrize("name", SCREENS)
def test_page_is_the_golden_one(name: str, golden: Golden) -> None:
    golden(f"compare_{name}_80.txt", page(SCREENS[name]()))


def test_wide_and_verbose_pages_are_the_golden_ones(golden: Golden) -> None:
    golden("compare_repeated_120.txt", page(repeated(), 120))
    golden("compare_unlike_80.txt", page(unlike(), verbose=True))


def test_the_comment_is_the_golden_one(golden: Golden) -> None:
    golden("compare_slower.md", comparison_markdown.render([single(1.12, SLOWER)]))


@pytest.mark.parametrize("width", [40, 60, 80, 120])
@pytest.mark.parametrize("name", SCREENS)
def test_no_line_is_wider_than_the_page(name: str, width: int) -> None:
    for verbose in (False, True):
        text = page(SCREENS[name](), width, verbose=verbose)
        assert max(map(cell_len, text.split("\n"))) <= width
        assert text.endswith("\n")


def test_the_answer_comes_first_and_what_is_not_comparable_before_it() -> None:
    lines = page(unlike()).split("\n\n")[1].split("\n")
    told = " ".join(lines)
    assert told.startswith("NOT LIKE FOR LIKE: OTHER has 12 steady steps; a verdict takes 20;")
    assert "batch size 32 -> 64; torch 2.13.0 -> 2.9.1" in told
    assert told.index("NOT LIKE") < told.index("NO VERDICT: too few steady steps in OTHER")


def test_a_run_that_did_not_end_as_it_should_is_said_before_the_answer() -> None:
    base = made_up(summaries.healthy(), "a")
    crashed = replace(summaries.healthy().run, exit=Exit(1, None, "exception", "ValueError"))
    found = compare([base], [made_up(replace(summaries.healthy(), run=crashed), "b")])
    told = (
        "NOT A WHOLE RUN: OTHER ended by an exception (ValueError); steps until then are compared"
    )
    for text in (page(found, 120), comparison_markdown.render([found])):
        assert text.count("ValueError") == 1
        assert text.index(told) < text.index("NO VERDICT")
    assert "NOT A WHOLE RUN" not in page(compare([base], [base]))


def test_an_edited_script_is_said_to_be_one() -> None:
    base = made_up(summaries.healthy(), "healthy-1", script="a.py", script_sha256="a")
    other = made_up(summaries.healthy(), "healthy-2", script="a.py", script_sha256="b")
    told = page(compare([base], [other]))
    assert "THE SCRIPT WAS EDITED" in told
    assert "NOT LIKE FOR LIKE" not in told
    # With something else besides it is one of several.
    renamed = replace(other, manifest={"script_sha256": "b", "script": "b.py"})
    told = page(compare([base], [renamed]))
    assert "NOT LIKE FOR LIKE: script" in told


def test_what_starts_of_passes_cost_leads_where_it_alone_differs() -> None:
    found = single(1.03, NO_VISIBLE_DIFFERENCE, half=0.2)

    def figure(name: str, base: float, other: float) -> Metric:
        return Metric(name, "step", base, other, other / base - 1, -0.9, -0.7, FASTER, "lower")

    figures = [figure("loop_step_s", 0.15, 0.12), figure("starts_per_step_s", 0.035, 0.005)]
    told = " ".join(page(replace(found, metrics=[*found.metrics, *figures])).split())
    assert (
        "OTHER IS FASTER WHERE PASSES BEGIN: their starts add 5.00 ms to a mean step instead of "
        "35.0 ms, which saves 20 % of BASE's training; a step in between takes 3.0 % longer" in told
    )
    assert "later starts add 35.0 ms 5.00 ms" in told


def test_what_is_shown_of_a_step_adds_up() -> None:
    for found in (repeated(), single(1.12, SLOWER)):
        block = page(found).split("Where it goes")[1].split("\n\n")[0].split("\n")[1:]
        rows = [re.findall(r"(?<= )[-+]?[\d,]+\.\d(?=  |$)", row)[:3] for row in block if row]
        *parts, total = [[round(float(n.replace(",", "")) * 10) for n in row] for row in rows]
        assert [sum(column) for column in zip(*parts, strict=True)] == total


def test_an_interval_so_wide_is_no_absence_of_a_difference() -> None:
    wide = too_noisy(single(1.1, NO_VISIBLE_DIFFERENCE, half=0.4))
    told = " ".join(page(wide).split())
    assert (
        "TOO NOISY TO TELL: a step took 10 % longer, but anything from 21 % less time to 83 % "
        "longer would fit what was measured" in told
    )
    assert "NO VISIBLE DIFFERENCE" in page(single(1.01, NO_VISIBLE_DIFFERENCE))


def test_what_is_too_noisy_is_unsure_on_the_page_and_unknown_in_the_json() -> None:
    wide = too_noisy(single(1.0, NO_VISIBLE_DIFFERENCE, half=0.14))
    told = " ".join(page(wide).split())
    assert (
        "TOO NOISY TO TELL: a step took as long, but anything from 12 % less time to 16 % longer "
        "would fit what was measured" in told
    )
    assert re.search(r"\n  mean .* unsure\n", page(wide))
    assert "differences under 3 % can be chance" in told
    plain = json.loads(comparison_json.render([wide]))
    assert plain["verdict"] == "unknown"
    why = "too noisy to tell: step times vary too much"
    assert plain["why_unknown"] == why
    assert f"No verdict: {why}" in plain["notes"]
    assert plain["speedup"]["low"] < 1 < plain["speedup"]["high"]


def gated(found: Comparison, limit: float) -> Comparison:
    gate = judged(limit, found.speedup, found.discrepancies, found.measured_by)
    return replace(found, gate=gate)


@pytest.mark.parametrize(
    ("found", "limit", "told"),
    [
        (
            lambda: single(1.12, SLOWER),
            0.05,
            "GATE TRIPPED (at most 5 % longer): a step takes 8.6 % longer at least",
        ),
        (
            lambda: single(1.006, NO_VISIBLE_DIFFERENCE),
            0.05,
            "GATE PASSED (at most 5 % longer): a step takes 3.8 % longer at most",
        ),
        (
            lambda: single(1.006, NO_VISIBLE_DIFFERENCE),
            0.025,
            "GATE PASSED (at most 2.5 % longer): a step took 0.6 % longer, not over the limit for "
            "certain: 2.4 % less time to 3.8 % longer would fit",
        ),
        (
            unlike,
            0.05,
            # A new torch is what a gate may be there for, another batch size is not.
            "GATE NOT JUDGED (at most 5 % longer): not like for like: batch size 32 -> 64",
        ),
    ],
)
def test_what_the_gate_says_follows_the_answer(
    found: Callable[[], Comparison], limit: float, told: str
) -> None:
    shown = gated(found(), limit)
    assert told in " ".join(page(shown).split())
    assert told.replace("->", "-&gt;") in comparison_markdown.render([shown])
    assert "GATE" not in page(found())


def test_a_part_that_clearly_changed_leads_where_the_step_does_not_tell() -> None:
    found = single(0.8, NO_VISIBLE_DIFFERENCE, half=0.4)
    kept = [one for one in found.metrics if one.name != "per_step_s.data_wait"]
    step = found.metric("step_s")
    assert step is not None
    assert step.base is not None
    base = 0.3 * step.base
    wait = Metric(
        "per_step_s.data_wait", "ledger", base, base / 10, -0.9, -0.95, -0.8, FASTER, "lower"
    )
    shorter = [replace(one, other=0.8 * step.base) if one is step else one for one in kept]
    told = " ".join(page(replace(found, metrics=[*shorter, wait])).split())
    assert "DATA WAIT IS SHORTER, the step not for certain: data wait takes" in told
    assert "a whole step took" in told
    assert "TOO NOISY" not in told


def test_colour_only_where_it_is_asked_for() -> None:
    assert "\x1b" not in page(single(1.12, SLOWER))
    assert "\x1b[31mslower" in page(single(1.12, SLOWER), color=True)
    assert page(repeated(), unicode=False).isascii()


def test_several_others_are_several_pages_and_an_array() -> None:
    found = [single(1.12, SLOWER), single(1.006, NO_VISIBLE_DIFFERENCE)]
    text = comparison_page.render(found, width=80, color=False)
    assert text.count("\nOTHER   ") == 2
    assert comparison_markdown.render(found).count("\n---\n") == 1
    several = json.loads(comparison_json.render(found))
    assert [one["verdict"] for one in several] == ["slower", "no_visible_difference"]
    assert json.loads(comparison_json.render(found[:1])) == several[0]


def test_hostile_strings_are_shown_not_obeyed() -> None:
    evil = "\x1b]0;x\x07\x1b[31m<b>@team|`x`\n"
    base = made_up(summaries.hostile(), evil, script=evil, sources={evil: "a"})
    other = made_up(summaries.slow_loader(), "b", script="train.py", sources={evil: "b"})
    found = compare([base], [other])
    for text in (page(found), page(found, verbose=True), comparison_markdown.render([found])):
        assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]", text)
    markdown = comparison_markdown.render([found])
    assert "<" not in markdown
    assert "@team" not in markdown
    rows = [line for line in markdown.split("\n") if line.startswith("|")]
    assert {row.count("|") for row in rows} == {7}
    assert comparison_json.render([found]).isascii()


def test_what_is_missing_is_a_dash_and_never_none() -> None:
    found = compare([made_up(summaries.sparse(), "a")], [made_up(summaries.slow_loader(), "b")])
    for text in (page(found, verbose=True), comparison_markdown.render([found], verbose=True)):
        assert "None" not in text
        assert "nan" not in text
