"""The page in the terminal: golden screens, sums, widths, hostile strings, missing figures."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

import pytest
from rich.cells import cell_len
from support import summaries

from trainprof.analysis.summary.device import SyncPoint
from trainprof.analysis.summary.run import Exit, Ledger, Outlier, Verdict
from trainprof.analysis.summary.run_summary import RunSummary
from trainprof.report import markdown
from trainprof.report.page import page as terminal

SCREENS = {
    "slow_loader": summaries.slow_loader,
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
}
Golden = Callable[[str, str], None]

LEDGER_ROW = re.compile(
    r"^  (?P<label>\S.*?) +[█▉▊▋▌▍▎▏]* +"
    r"(?P<seconds>[\d,.]+) +(?P<percent>[\d.]+) %(?: +(?P<step>[\d,.]+))?$"
)


def page(summary: RunSummary, width: int = 80, **options: bool) -> str:
    return terminal.render(summary, width=width, **{"color": False, **options})


def ledger_rows(text: str) -> list[dict[str, str | None]]:
    """The ledger's rows as printed, the total last."""
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


@pytest.mark.parametrize("name", SCREENS)
def test_screen_is_the_golden_one(name: str, golden: Golden) -> None:
    golden(f"{name}_80.txt", page(SCREENS[name]()))


def test_later_findings_have_their_change_on_the_golden_screen(golden: Golden) -> None:
    golden("several_findings_80.txt", page(summaries.several_findings()))


def test_wide_screen_is_the_golden_one(golden: Golden) -> None:
    golden("slow_loader_120.txt", page(summaries.slow_loader(), 120))


def test_verbose_screen_is_the_golden_one(golden: Golden) -> None:
    golden("slow_loader_verbose_80.txt", page(summaries.slow_loader(), verbose=True))


@pytest.mark.parametrize("name", sorted(ALL.keys() - {"hostile"}))
def test_what_matters_fits_thirty_lines(name: str) -> None:
    assert page(ALL[name]()).count("\n") <= 30


def test_a_full_page_gives_up_what_matters_least() -> None:
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
    text = page(full)
    assert "Mean of 9 epochs: 20.0 s, waiting for data" in text
    assert "Epoch 1 took" in page(full, verbose=True)
    assert "Syncs" not in text
    assert "Syncs" in page(full, verbose=True)
    assert text.endswith("trainprof report trainprof-runs/train-20261121-034012-7f3a\n")


@pytest.mark.parametrize(
    ("longest_s", "told"),
    [(0.19, "no outliers (2 x median)"), (0.21, "too uneven to name outliers")],
)
def test_steps_of_which_too_many_are_slow_are_not_said_to_have_no_slow_ones(
    longest_s: float, told: str
) -> None:
    base = summaries.healthy()
    uneven = replace(base.training, step_s=summaries.statistics(0.12, p50=0.1, max=longest_s))
    text = " ".join(page(replace(base, training=uneven, outliers=[])).split())
    assert told in text


def test_all_outliers_are_counted_where_only_the_longest_are_listed() -> None:
    base = summaries.healthy()
    listed = [Outlier(7, 0, 3.0, 1.0, "data_wait", 0.9, 5, None)] * 3
    many = replace(base, outliers=listed, outlier_count=142)
    assert "142 outliers (2 x median) 5 steps apart" in " ".join(page(many).split())
    assert "the longest 3 of 142" in page(many, verbose=True)
    assert "; 142 outliers: step 8 took" in markdown.render(many)
    for count in (3, None):  # an older run does not tell
        few = replace(many, outlier_count=count)
        assert "3 outliers (2 x median) 5 steps apart" in " ".join(page(few).split())
        assert "the longest" not in page(few, verbose=True)


@pytest.mark.parametrize("width", [30, 60, 80, 120, 200])
@pytest.mark.parametrize("verbose", [False, True])
@pytest.mark.parametrize("name", ALL)
def test_no_line_is_wider_than_the_page(name: str, width: int, verbose: bool) -> None:
    for line in all_but_the_command(page(ALL[name](), width, verbose=verbose)):
        assert cell_len(line) <= width
        assert line == line.rstrip()


@pytest.mark.parametrize("verbose", [False, True])
@pytest.mark.parametrize("width", [60, 80, 120])
@pytest.mark.parametrize("name", ["slow_loader", "healthy", "killed_for_memory", "accelerator"])
def test_columns_add_up_to_the_totals_shown(name: str, width: int, verbose: bool) -> None:
    *rows, total = ledger_rows(page(ALL[name](), width, verbose=verbose))
    assert total["label"] == "total"
    for column in ("seconds", "percent", "step"):
        assert sum(units(row[column]) for row in rows) == units(total[column]), column
    assert total["percent"] == "100.0"


def test_the_total_is_the_wall_time() -> None:
    summary = summaries.slow_loader()
    assert ledger_rows(page(summary))[-1]["seconds"] == f"{summary.ledger.wall_s:.1f}"


def test_rows_under_half_a_percent_are_folded_unless_verbose() -> None:
    short, whole = page(summaries.slow_loader()), page(summaries.slow_loader(), verbose=True)
    assert "garbage collection" not in short.split("total")[0]
    assert "rest (10 smaller)" in short
    assert "garbage collection" in whole
    assert "smaller)" not in whole


def test_what_the_ledger_lacks_is_a_row_of_its_own() -> None:
    summary = summaries.slow_loader()
    short = replace(
        summary, ledger=Ledger(summary.ledger.wall_s + 20.0, summary.ledger.seconds, {})
    )
    assert {"label": "not accounted for", "seconds": "20.0"}.items() <= ledger_rows(page(short))[
        1
    ].items()


def test_waits_for_the_gpu_are_one_row_and_no_culprit() -> None:
    text = page(summaries.accelerator())
    first = ledger_rows(text)[0]
    assert first["label"] == "waiting for the GPU or copying"
    assert first["seconds"] == "68.0"
    assert first["step"] == "34.0"
    for name in ("sync (", "transfer (", "device wait", "58.1 s", "9.60 s"):
        assert name not in text
        assert name not in page(summaries.accelerator(), verbose=True)


def test_on_the_cpu_sync_and_transfer_keep_their_rows() -> None:
    text = page(summaries.slow_loader(), verbose=True)
    assert "waiting for the GPU" not in text
    assert "transfer (copying)" in text


def test_the_first_line_says_how_far_it_got() -> None:
    text = page(summaries.slow_loader(), 120)
    assert text.startswith(
        "trainprof: train.py completed after 58.4 s: "
        "250 steps, 2 epochs, 4.42 steps/s, 142 samples/s\n"
    )


@pytest.mark.parametrize(
    ("end", "words"),
    [
        (Exit(0, None, "completed"), "train.py completed after 58.4 s"),
        (Exit(3, None, "completed"), "train.py ended with exit status 3 after 58.4 s"),
        (Exit(1, None, "exception", "KeyError"), "train.py ended with KeyError after"),
        (Exit(130, None, "interrupted"), "train.py was interrupted (Ctrl-C) after"),
        (Exit(None, 15, "signal"), "train.py was ended by SIGTERM after"),
        (Exit(None, 64, "signal"), "train.py was ended by SIGRTMAX after"),
        (Exit(None, 9, "killed"), "train.py was killed by SIGKILL after"),
        (Exit(None, 9, "killed", "out of memory"), "SIGKILL after 58.4 s: out of memory"),
        (Exit(0, None, "limit", "--max-steps 200"), "was ended by --max-steps 200 after"),
        (
            Exit(1, None, "exception", "OSError", "--max-steps"),
            "OSError after 58.4 s: training had been ended at the limit asked for (--max-steps)",
        ),
        (
            Exit(None, 9, "killed", "out of memory", "--max-time"),
            "training had been ended at the limit asked for (--max-time); out of memory",
        ),
        (Exit(None, None, "running"), "train.py is still running, after"),
        (Exit(None, None, "unknown"), "train.py ended without a record of how, after"),
        (Exit(None, None, "a later version's"), "train.py ended without a record of how, after"),
    ],
)
def test_every_end_is_said_first(end: Exit, words: str) -> None:
    summary = summaries.slow_loader()
    text = page(replace(summary, run=replace(summary.run, exit=end)), 200)
    assert words in text.split("\n")[0]


def test_a_run_killed_for_memory_tells_whose_memory_grew() -> None:
    above_headline = page(summaries.killed_for_memory(), 200).split("DATA-BOUND")[0]
    assert "out of memory" in above_headline
    assert "380 ms before the end: main process 1.10 GiB, workers 6.80 GiB" in above_headline
    assert "the workers by 5.30 GiB, the main process by 38.0 MiB" in above_headline


def test_a_kill_without_samples_says_so() -> None:
    summary = replace(summaries.killed_for_memory(), system=None)
    assert "Memory before the end: not measured." in page(summary)


@pytest.mark.parametrize("verbose", [False, True])
@pytest.mark.parametrize("name", ["cut_off", "sparse"])
def test_nothing_measured_is_said_and_never_zero(name: str, verbose: bool) -> None:
    text = page(ALL[name](), verbose=verbose)
    assert "None" not in text
    assert "nan" not in text
    assert "not measured" in text


@pytest.mark.parametrize("verbose", [False, True])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), 0.0, -1.0])
@pytest.mark.parametrize("name", ["healthy", "killed_for_memory", "accelerator"])
def test_odd_numbers_do_not_stop_the_page(name: str, value: float, verbose: bool) -> None:
    text = page(summaries.with_every_float(ALL[name](), value), verbose=verbose)
    assert not re.search(r"\b(nan|inf)\b", text)
    assert text.count("\n") > 10


def test_a_reason_on_record_stands_beside_not_measured() -> None:
    summary = replace(
        summaries.cut_off(), not_observed={"training.step_s": "0 steady steps, 20 are needed"}
    )
    assert "Steps      not measured (0 steady steps, 20 are needed)" in page(summary)


@pytest.mark.parametrize("verbose", [False, True])
@pytest.mark.parametrize("name", ALL)
def test_without_colour_there_is_no_escape(name: str, verbose: bool) -> None:
    text = page(ALL[name](), verbose=verbose)
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", text)
    text.encode("utf-8")


def test_with_colour_the_only_escapes_are_colours() -> None:
    text = page(summaries.hostile(), color=True, verbose=True)
    plain = re.sub(r"\x1b\[[0-9;]*m", "", text)
    assert "\x1b" not in plain
    assert plain != text
    assert "\x1b[31m" not in text  # the script's own red


def test_colour_does_not_change_the_words() -> None:
    coloured = page(summaries.slow_loader(), color=True)
    assert re.sub(r"\x1b\[[0-9;]*m", "", coloured) == page(summaries.slow_loader())


def test_the_environment_does_not_change_the_page(monkeypatch: pytest.MonkeyPatch) -> None:
    before = page(summaries.slow_loader())
    for name, value in {"COLUMNS": "20", "FORCE_COLOR": "1", "TTY_COMPATIBLE": "1"}.items():
        monkeypatch.setenv(name, value)
    assert page(summaries.slow_loader()) == before


@pytest.mark.parametrize("verbose", [False, True])
def test_markup_shows_literally(verbose: bool) -> None:
    assert "[red]evil[/red]" in page(summaries.hostile(), verbose=verbose)


def test_an_escape_takes_none_of_our_words_with_it() -> None:
    summary = summaries.slow_loader()
    named = replace(summary, run=replace(summary.run, name="train.py\x1b["))
    assert page(named).startswith("trainprof: train.py completed after")


@pytest.mark.parametrize("verbose", [False, True])
@pytest.mark.parametrize("name", ALL)
def test_ascii_pages_are_ascii(name: str, verbose: bool) -> None:
    text = page(ALL[name](), unicode=False, verbose=verbose)
    assert text.isascii()
    assert max(map(len, all_but_the_command(text))) <= 80


def test_ascii_page_has_bars_and_microseconds() -> None:
    text = page(replace(summaries.slow_loader(), findings=[]), unicode=False)
    assert "data wait          #####" in text
    assert "9.10 us a step" in text


def test_wide_characters_keep_the_columns() -> None:
    site = "训练脚本/数据.py:41"
    summary = replace(
        summaries.slow_loader(), loaders=[summaries.loader(site), summaries.loader("a.py:1")]
    )
    heading, wide, narrow = next(
        lines
        for lines in zip(*(iter(page(summary).split("\n")[n:]) for n in range(3)), strict=False)
        if lines[0].startswith("Loader")
    )
    assert cell_len(heading) == cell_len(wide) == cell_len(narrow)


def test_a_long_site_keeps_its_end_and_columns_give_way() -> None:
    site = "projects/segmentation/experiments/train_segmentation_model.py:1041"
    summary = replace(summaries.slow_loader(), loaders=[summaries.loader(site)])
    row = next(line for line in page(summary).split("\n") if line.startswith("…"))
    assert "train_segmentation_model.py:1041" in row
    assert site in page(summary, verbose=True)


def test_the_first_two_epochs_and_the_mean_of_the_others() -> None:
    healthy = summaries.healthy()
    bound = replace(healthy, verdict=summaries.slow_loader().verdict, findings_from=None)
    text = page(bound)
    assert "Epoch 1 took 14.8 s, waiting for data 427 ms (3 %), 0 of 125 batches slow" in text
    assert "Epoch 2 took 14.5 s" in text
    assert "Epoch 3" not in text
    assert "Mean of 3 to 10: 14.5 s" in text
    assert "Evaluation 10 passes took 11.7 s, waiting for data 600 ms (5 %)" in text


def test_epochs_that_are_alike_and_do_not_wait_take_one_line() -> None:
    healthy = summaries.healthy()
    text = page(healthy)
    assert "Mean of 10 epochs: 14.5 s, waiting for data" in text
    assert "Epoch 1" not in text
    for epoch in (
        replace(healthy.epochs[0], seconds=30.0),
        replace(healthy.epochs[0], slow_batches=1),
        replace(healthy.epochs[0], iterations=7),
    ):
        assert "Epoch 1 took" in page(replace(healthy, epochs=[epoch, *healthy.epochs[1:]]))


def test_that_samples_are_not_known_is_told_on_request() -> None:
    missing = {"training.samples": "the sampler does not tell how large a batch is"}
    summary = replace(summaries.healthy(), not_observed=missing)
    assert "does not tell" not in page(summary)
    assert "samples: the sampler does not tell how large" in page(summary, verbose=True)


def test_an_evaluation_on_batches_of_the_scripts_own_counts_none() -> None:
    healthy = summaries.healthy()
    none = {"iterations": 0, "data_wait_s": 0.0, "first_batch_s": 0.0, "loaders": []}
    summary = replace(healthy, evaluation=replace(healthy.evaluation, **none))
    assert "Evaluation 10 passes took 11.7 s, without a loader\n" in page(summary)


def test_verbose_shows_every_epoch_and_pass() -> None:
    text = page(summaries.healthy(), verbose=True)
    for number in range(1, 11):
        assert f"Epoch {number} took" in text
        assert f"Evaluation {number} took" in text


def test_slow_batches_name_their_threshold() -> None:
    assert "slow = waited over 500 ms" in page(summaries.slow_loader())
    assert "slow = " not in page(summaries.healthy())


def test_calls_on_cpu_tensors_are_counted_and_do_not_wait() -> None:
    plain = page(replace(summaries.slow_loader(), findings=[]), 120)
    assert "train.py:66 item: 250 calls on CPU tensors (no wait)" in plain
    mixed = replace(
        summaries.slow_loader(),
        findings=[],
        sync_points=[SyncPoint("a.py:1", "item", 9, 4, 0.5, None)],
    )
    assert "9 calls, 4 of them on CPU tensors (no wait), 500 ms" in page(mixed, 120)
    stopped = [SyncPoint("a.py:1", "float", 50000, 50000, None, None, counted_until_s=2.1)]
    told = page(replace(summaries.slow_loader(), findings=[], sync_points=stopped), 120)
    assert "50,000 calls on CPU tensors (no wait; counted until 2.10 s)" in told


def test_what_recording_took_is_told_at_the_top_where_it_is_much() -> None:
    healthy = summaries.healthy()
    costly = replace(healthy, overhead=replace(healthy.overhead, share=0.25))
    told = "Recording took about 25 % of a step: without trainprof, training is faster."
    assert told in page(costly, 120)
    assert told in markdown.render(costly)
    assert "Recording took" not in page(healthy, 120)


def test_what_closer_looks_took_is_told() -> None:
    healthy = summaries.healthy()
    looked = replace(healthy, overhead=replace(healthy.overhead, looks_s=0.012))
    told = "trainprof  about 9.80 µs a step (< 1 %), 12.0 ms in all for looks\n"
    assert told in page(looked)
    assert "for looks" not in page(healthy)
    assert "12.0 ms in all for looks at loaders and some steps" in page(looked, 120, verbose=True)


@pytest.mark.parametrize("source", ["backward", "batches"])
def test_steps_counted_by_something_else_say_so(source: str) -> None:
    summary = summaries.slow_loader()
    other = replace(summary, training=replace(summary.training, step_source=source))
    assert f"counted by {source}" in page(other)


def test_of_several_ranks_the_ledger_is_said_to_be_a_mean() -> None:
    summary = replace(summaries.slow_loader(), ranks=[{"rank": 0}, {"rank": 1}])
    assert "\nWhere the time went, mean of 2 ranks  " in page(summary)
    assert "\nWhere the time went  " in page(summary, 40)
    assert "| where the time went, mean of 2 ranks |" in markdown.render(summary)
    assert "mean of" not in page(replace(summary, ranks=[]))


def test_there_is_one_headline_and_it_is_the_verdicts() -> None:
    verdict = Verdict("data", "NOT DATA-BOUND: 3 % of training time", level="not")
    text = page(replace(summaries.slow_loader(), verdict=verdict))
    assert text.split("\n\n")[1] == verdict.headline


def test_the_next_command_can_be_pasted() -> None:
    summary = summaries.slow_loader()
    spaced = replace(summary, run=replace(summary.run, directory="my runs/a"))
    assert page(spaced).endswith("Saved      see it again: trainprof report 'my runs/a'\n")


@pytest.mark.parametrize("verbose", [False, True])
@pytest.mark.parametrize("width", [20, 80, 119, 120, 130, 131, 200])
def test_the_next_command_is_never_broken(width: int, verbose: bool) -> None:
    summary = summaries.slow_loader()
    directory = f"/data/{'deep/' * 20}run"
    far = replace(summary, run=replace(summary.run, directory=directory))
    for color in (False, True):
        *_, last = page(far, width, verbose=verbose, color=color).removesuffix("\n").split("\n")
        assert last.endswith(f" trainprof report {directory}") or last == (
            f"trainprof report {directory}"
        )


def test_many_middling_rows_are_named_and_the_page_still_fits() -> None:
    keys = ("data_wait", "backward", "forward", "optimizer", "evaluation", "other", "startup")
    seconds = dict.fromkeys(keys, 10.0) | {"transfer": 6.0, "gc": 3.0, "loss": 2.0, "sync": 2.0}
    text = page(replace(summaries.healthy(), ledger=summaries.ledger(seconds)))
    assert text.count("\n") <= 30
    labels = [row["label"] for row in ledger_rows(text)]
    assert len(labels) == len(keys) + 3
    assert str(labels[-2]).startswith("rest (")
    assert "transfer (copying)" in labels


def test_faults_and_gaps_are_told_short_or_in_full() -> None:
    summary = replace(
        summaries.slow_loader(),
        faults=["the sync probe was switched off: KeyError"],
        not_observed={"system.gpus": "no driver", "devices": "no GPU was used"},
    )
    assert "the sync probe was switched off: KeyError, 2 more with --verbose" in page(summary)
    whole = page(summary, verbose=True)
    assert "GPUs: no driver" in whole
    assert "device time: no GPU was used" in whole


@pytest.mark.parametrize("verbose", [False, True])
def test_that_another_thread_was_at_work_is_said(verbose: bool) -> None:
    for share, is_said in ((0.28, True), (0.02, False), (None, False)):
        run = replace(summaries.slow_loader(), beside_share=share)
        said = "was at work in 28 % of the" in " ".join(page(run, verbose=verbose).split())
        assert said is is_said


@pytest.mark.parametrize("verbose", [False, True])
def test_that_other_programs_took_the_cpu_is_said(verbose: bool) -> None:
    disturbed = {
        "host_percent": {"mean": 90.0},
        "tree_percent": {"mean": 120.0},
        "per_core_percent": [90.0] * 4,
        "cores_usable": 4,
        "pressure_some_share": 0.4,
    }
    alone = disturbed | {"host_percent": {"mean": 31.0}}
    for cpu, is_said in ((disturbed, True), (alone, False)):
        run = replace(summaries.slow_loader(), system=summaries.system(cpu=cpu))
        said = "other programs kept 2.4 of 4 cores busy" in page(run, verbose=verbose)
        assert said is is_said
        written = "Other programs kept 2.4 of 4 cores busy" in markdown.render(run)
        assert written is is_said


def test_a_pace_without_much_evaluation_says_so() -> None:
    healthy = summaries.healthy()
    training_s = healthy.phases.training_s
    for share, is_said in ((0.1, False), (0.5, True)):
        evaluation = replace(healthy.evaluation, seconds=share * training_s)
        text = " ".join(page(replace(healthy, evaluation=evaluation)).split())
        assert ("steps/s without evaluation" in text) is is_said
        outside = replace(evaluation, in_training_s=0.0)
        assert "without evaluation" not in page(replace(healthy, evaluation=outside))
