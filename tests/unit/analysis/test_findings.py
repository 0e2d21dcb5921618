"""Each planted fault is found by its cause, and nothing else; healthy runs have no finding."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
import torch
from support import summaries
from support.cases import STEPS, Planted, case_of, idle_device, on_device

from trainprof.analysis.checkpoints import Checkpoints
from trainprof.analysis.code_figures import (
    Collective,
    CompetingThread,
    Compilation,
    HooksInForward,
    HotLine,
    Numerics,
    PythonInModel,
)
from trainprof.analysis.diagnosis.case import Case, LoaderCase
from trainprof.analysis.diagnosis.catalogue import RULES
from trainprof.analysis.diagnosis.changed_inputs import on_one_thread
from trainprof.analysis.diagnosis.cheaper_samples import without_line
from trainprof.analysis.diagnosis.diagnose import _without_symptoms, diagnose
from trainprof.analysis.diagnosis.gains import FASTER_REST
from trainprof.analysis.diagnosis.loader_cautions import (
    cautions_of,
    cautions_of_needed,
    cautions_of_one_iterator,
)
from trainprof.analysis.diagnosis.loader_change import fewer_workers
from trainprof.analysis.diagnosis.settings import (
    UnknownThreshold,
    parsed_settings,
    rule_settings,
    threshold_names,
)
from trainprof.analysis.diagnosis.slow_pass_starts import one_iterator
from trainprof.analysis.diagnosis.together import together
from trainprof.analysis.diagnosis.wording import size
from trainprof.analysis.diagnosis.worth import least_gain
from trainprof.analysis.embedding_tables import EmbeddingTable, EmbeddingTables
from trainprof.analysis.finding import (
    COSTLY_LINE,
    LIKELY,
    MODELLED_WORKERS,
    OTHER_OPTIMIZERS,
    WITHOUT_LINE,
    Finding,
)
from trainprof.analysis.ledger import LOADER_KEYS
from trainprof.analysis.limit_names import BLOCKED, RECEIVE
from trainprof.analysis.loader_builder import builder_of
from trainprof.analysis.loader_figures import Loader, WorkerThreads
from trainprof.analysis.memory_figures import DeviceMemory
from trainprof.analysis.names import Sites
from trainprof.analysis.optimizer_builder import OptimizerCall
from trainprof.analysis.pipeline import predict
from trainprof.analysis.pipeline_scenario import Interval
from trainprof.analysis.rarely_used_gradients import RarelyUsedGradients, rarely_used_gradients
from trainprof.analysis.repeated_forwards import RepeatedForwards
from trainprof.analysis.tiny_numbers import TinyNumbers, tiny_numbers
from trainprof.analysis.torch_settings import LoopedOptimizer, OwnOptimizer, TorchSettings
from trainprof.analysis.unused_forwards import UnusedForwards
from trainprof.analysis.unused_gradients import (
    DiscardedGradients,
    PartOfModel,
    UnusedGradients,
)
from trainprof.record.schema import Writer
from trainprof.report.gain_words import speedup_words


def found(case: Case) -> list[str]:
    return [finding.id for finding in diagnose(case).findings]


def only(case: Case) -> Finding:
    [finding] = diagnose(case).findings
    return finding


def hot_line(part: str, share: float = 0.9) -> HotLine:
    return HotLine(part, "data.py:12", "decode", ["train.py:50"], 100, share, 1.0)


def test_batches_made_between_the_steps_want_workers() -> None:
    planted = Planted(fetch_s=0.03, running=0.6, compute_s=0.01)
    finding = only(case_of(planted))
    assert (finding.id, finding.site) == ("serial_loading", "train.py:41")
    assert finding.change == {"num_workers": 3, "persistent_workers": True}
    assert finding.advice == "DataLoader(..., num_workers=3, persistent_workers=True)"
    assert finding.predicted_speedup is not None
    # Three workers give a batch each 10 ms, as fast as training takes them.
    low, high = finding.predicted_speedup
    assert low <= 4.0 <= high < 1.6 * low
    assert finding.severity == "high"
    assert not finding.is_at_most
    assert "30.0 of" in finding.title or "30.0 ms" in finding.title


@pytest.mark.parametrize(
    ("package", "advice", "is_for_all"),
    [
        (
            "transformers",
            "TrainingArguments(..., dataloader_num_workers=3, dataloader_persistent_workers=True)",
            True,
        ),
        ("timm", "create_loader(..., num_workers=3, persistent_workers=True)", False),
        (
            "planted",
            "num_workers=3, persistent_workers=True for this loader, by the settings of planted, "
            "which builds it",
            False,
        ),
    ],
)
def test_a_loader_that_a_package_builds_is_changed_in_its_settings(
    package: str, advice: str, is_for_all: bool
) -> None:
    planted = Planted(fetch_s=0.03, compute_s=0.01)
    planted.loader = replace(planted.loader, built_by=package)
    finding = only(case_of(planted))
    assert (finding.id, finding.advice) == ("serial_loading", advice)
    assert finding.change == {"num_workers": 3, "persistent_workers": True}
    assert any("and of evaluation" in told for told in finding.cautions) is is_for_all
    assert finding.evidence["built_by"] == package


@pytest.mark.parametrize(
    ("also", "others"),
    [
        (["evaluation"], "the loader of evaluation"),
        (["training"], "another loader of training"),
        (["other"], "another loader"),
        (["evaluation", "training"], "the loader of evaluation and another loader of training"),
        ([], None),
    ],
)
def test_a_change_counts_for_all_that_a_line_builds(also: list[str], others: str | None) -> None:
    planted = Planted(fetch_s=0.03, compute_s=0.01)
    planted.loader = replace(planted.loader, also_builds=also)
    finding = only(case_of(planted))
    told = [one for one in finding.cautions if "built by the same line" in one]
    assert told == ([f"it counts for {others}, built by the same line"] if others else [])
    assert finding.change == {"num_workers": 3, "persistent_workers": True}


def test_loaders_that_take_turns_have_one_change() -> None:
    planted = Planted(fetch_s=0.03, compute_s=0.01, passes=10)
    planted.loader = replace(planted.loader, taking_turns=5)
    finding = only(case_of(planted))
    assert finding.change == {"num_workers": 3}  # those of all would live at once
    assert "the line builds 5 loaders that take turns: all of them together" in finding.also


@pytest.mark.parametrize(("turns", "restarts"), [(1, 9), (4, 6), (10, 0)])
def test_of_loaders_that_take_turns_each_starts_its_workers_once(turns: int, restarts: int) -> None:
    planted = Planted(workers=2, fetch_s=0.004, compute_s=0.01, passes=10, start_s=0.1)
    planted.loader = replace(planted.loader, taking_turns=turns)
    told = [one for one in diagnose(case_of(planted)).findings if one.id == "worker_restart"]
    assert len(told) == (1 if restarts else 0)
    for one in told:
        assert one.recoverable_s == pytest.approx(restarts * 0.1, rel=0.15)
        many = [x for x in one.cautions if "would keep its own workers" in x]
        assert [x.split(": ")[1] for x in many] == (
            [f"{2 * turns} processes at once, each with its memory"] if turns > 1 else []
        )


def test_a_package_that_starts_workers_again_is_told_in_its_own_words() -> None:
    planted = Planted(workers=2, fetch_s=0.004, compute_s=0.01, passes=10, start_s=0.1)
    planted.loader = replace(planted.loader, built_by="transformers")
    finding = only(case_of(planted))
    assert finding.id == "worker_restart"
    assert finding.advice == "TrainingArguments(..., dataloader_persistent_workers=True)"


def test_who_has_to_be_told_a_loaders_arguments() -> None:
    assert builder_of({"site": 3, "built_at": 5, "built_by": "planted"}) == "planted"
    # Where no line is the user's, the package's own is named: there they can be changed.
    assert builder_of({"site": 3, "built_at": 3, "built_by": "planted"}) is None
    assert builder_of({"site": 3, "built_at": 3, "built_by": "transformers"}) == "transformers"
    assert builder_of({"site": 3, "built_at": 0, "built_by": None}) is None
    assert builder_of({"site": 3}) is None  # an older run
    assert builder_of({"site": 3, "built_by": ["nonsense"]}) is None


def test_where_workers_may_take_what_they_give_samples_are_to_be_cheaper() -> None:
    unsure = {"compute_cores": Interval(1.0, 1.4, 2.0), "receive_s": Interval(0.0, 0.001, 0.012)}
    planted = Planted(fetch_s=0.0065, running=1.0, compute_s=0.0155, cores=2, **unsure)
    assert found(case_of(planted)) == []  # nobody's line is known
    planted.loader = replace(planted.loader, hot_lines=[hot_line("making batches")])
    finding = only(case_of(planted))
    assert (finding.id, finding.site, finding.change) == ("serial_loading", "data.py:12", {})
    assert finding.also[0] == "the loader is built at train.py:41"
    assert finding.advice == "cheaper samples: data.py:12 (decode) first"
    assert finding.title.startswith("90 % of making a batch goes to data.py:12 (decode); the ")
    assert not any("of making a batch goes to" in told for told in finding.also)
    assert finding.is_at_most
    # Without them a step takes 15.5 ms instead of 22; what remains may get faster besides.
    assert finding.evidence[LIKELY] == pytest.approx(22 / 15.5, rel=0.02)
    assert any("num_workers=" in told and "only a rerun" in told for told in finding.also)


def test_beside_workers_that_may_lose_is_told_what_a_line_gives() -> None:
    unsure = {"compute_cores": Interval(1.0, 1.1, 1.2), "receive_s": Interval(0.0, 0.001, 0.012)}
    planted = Planted(
        workers=1, fetch_s=0.03, running=1.0, compute_s=0.015, cores=2, is_persistent=True, **unsure
    )
    planted.loader = replace(planted.loader, hot_lines=[hot_line("making batches", 0.3)])
    finding = only(case_of(planted))
    assert (finding.id, finding.change) == ("too_few_workers", {"num_workers": 2})
    assert (finding.predicted_speedup or [1.0])[0] < 1
    # Without three tenths of 30 ms, a batch is made in 21.
    head = "30 % of making a batch goes to data.py:12 (decode); 1 worker makes batches more slowly"
    assert finding.title.startswith(head)
    line = "steps up to about 1.43 x as fast without that line; by the workers alone "
    assert speedup_words(finding).startswith(line)
    # Nine tenths give so much more than workers can that only a rerun is left of them.
    planted.loader = replace(planted.loader, hot_lines=[hot_line("making batches")])
    finding = only(case_of(planted))
    assert (finding.id, finding.change) == ("too_few_workers", {})
    assert finding.evidence[LIKELY] == pytest.approx(2.0, rel=0.02)


def test_more_workers_that_may_lose_and_promise_little_leave_the_line() -> None:
    """The wait is there all the same, and its line is known: that is what is told then."""
    unsure = {"compute_cores": Interval(1.0, 1.3, 1.6), "receive_s": Interval(0.0, 0.001, 0.02)}
    planted = Planted(
        workers=1, fetch_s=0.03, running=1.0, compute_s=0.021, cores=2, is_persistent=True, **unsure
    )
    assert "too_few_workers" not in found(case_of(planted))
    planted.loader = replace(planted.loader, hot_lines=[hot_line("making batches")])
    finding = only(case_of(planted))
    assert (finding.id, finding.site, finding.change) == ("too_few_workers", "data.py:12", {})
    assert "more workers may take as much from training as they give" in finding.title
    assert finding.advice == "cheaper samples: data.py:12 (decode) first"
    assert finding.is_at_most
    # Without nine tenths of 30 ms, what is computed is what is left of a step.
    assert finding.evidence[LIKELY] == pytest.approx(30 / 21, rel=0.1)
    assert any("num_workers=2) helps only a rerun" in told for told in finding.also)


@pytest.mark.parametrize(("share", "comes_first"), [(0.95, True), (0.5, False)])
def test_one_function_that_takes_nearly_all_comes_ahead_of_workers_that_give_little(
    share: float, comes_first: bool
) -> None:
    unsure = {"compute_cores": Interval(1.0, 1.8, 2.0), "receive_s": Interval(0.0, 0.008, 0.012)}
    planted = Planted(fetch_s=0.024, running=1.0, compute_s=0.02, cores=2, **unsure)
    spread = replace(hot_line("making batches", share), line_share=share / 2)
    planted.loader = replace(planted.loader, hot_lines=[spread])
    finding = only(case_of(planted))
    assert finding.id == "serial_loading"
    assert (finding.change == {}) is comes_first
    if comes_first:
        assert finding.advice == "cheaper samples: data.py:12 (decode) first"
        # As with data that costs nothing, and not without that line alone.
        assert finding.evidence[LIKELY] == pytest.approx(44 / 20, rel=0.05)


def test_two_functions_that_take_much_are_both_named_the_longer_line_first() -> None:
    planted = Planted(fetch_s=0.03, running=0.6, compute_s=0.01)
    spread = replace(hot_line("making batches", 0.5), line_share=0.3)
    one_line = replace(hot_line("making batches", 0.4), site="data.py:27", function="find")
    for other, words in (
        (one_line, "40 % of making a batch goes to data.py:27 (find), 30 % to data.py:12 (decode)"),
        (replace(one_line, share=0.2), "30 % of making a batch goes to data.py:12 (decode), 50 %"),
    ):
        planted.loader = replace(planted.loader, hot_lines=[spread, other])
        assert any(told.startswith(words) for told in only(case_of(planted)).also)


@pytest.mark.parametrize(("share", "is_told"), [(0.95, True), (0.5, False)])
def test_a_line_that_would_give_more_than_more_workers_can(share: float, is_told: bool) -> None:
    # A second worker on two cores halves the 200 ms; without nineteen twentieths 10 ms are left.
    planted = Planted(
        workers=1, fetch_s=0.2, running=1.0, compute_s=0.005, cores=2, is_persistent=True
    )
    planted.loader = replace(planted.loader, hot_lines=[hot_line("making batches", share=share)])
    finding = only(case_of(planted))
    assert (finding.id, finding.change) == ("too_few_workers", {"num_workers": 2})
    # Twice as many give twice as much, and next to nothing of a step computes.
    assert (finding.predicted_speedup or [0.0, 0.0])[1] == pytest.approx(2.0, rel=0.06)
    more = "cheaper samples first: data.py:12 (decode); meanwhile "
    assert finding.advice.startswith(more) is is_told
    assert speedup_words(finding).startswith("steps up to about ") is is_told
    assert ("; meanwhile DataLoader(..., num_workers=2" in finding.advice) is is_told


@pytest.mark.parametrize(("cores", "is_told"), [(2, True), (16, False)])
def test_a_line_that_would_give_more_than_workers_can_is_told_ahead_of_them(
    cores: int, is_told: bool
) -> None:
    # Two cores make a batch each 45 ms, sixteen each 10; without the line it takes next to none.
    planted = Planted(fetch_s=0.09, running=1.0, compute_s=0.01, cores=cores)
    planted.loader = replace(planted.loader, hot_lines=[hot_line("making batches", share=0.98)])
    finding = only(case_of(planted))
    assert finding.id == "serial_loading"
    assert finding.change["num_workers"] > 0
    # Nobody knows whether its work can be spared: what is changed, and gained, are the workers.
    assert finding.site == "train.py:41"
    head = "98 % of making a batch goes to data.py:12 (decode); the training process makes"
    assert finding.title.startswith(head) is is_told
    first = "cheaper samples first: data.py:12 (decode); meanwhile "
    assert finding.advice.startswith(first) is is_told
    assert ("; meanwhile DataLoader(..., num_workers=" in finding.advice) is is_told
    assert finding.evidence.get(COSTLY_LINE) == ("data.py:12" if is_told else None)
    assert (finding.evidence.get(WITHOUT_LINE, 0.0) > 8) is is_told
    told = speedup_words(finding)
    line = "steps about 8.5 x as fast without that line; by the workers alone "
    assert told.startswith(line) is is_told
    # Once is enough.
    assert any("of making a batch goes to" in told for told in finding.also) is not is_told


def test_of_a_line_that_is_named_first_its_neighbours_are_told_behind() -> None:
    planted = Planted(fetch_s=0.09, running=1.0, compute_s=0.01, cores=2)
    other = replace(hot_line("making batches", share=0.27), site="data.py:27", function="find")
    most = replace(hot_line("making batches", share=0.72), line_share=0.72)
    planted.loader = replace(planted.loader, hot_lines=[most, other])
    finding = only(case_of(planted))
    assert WITHOUT_LINE not in finding.evidence  # two cores give as much
    planted.loader = replace(planted.loader, hot_lines=[replace(most, line_share=0.8, share=0.98)])
    finding = only(case_of(planted))
    assert finding.evidence[WITHOUT_LINE] == pytest.approx(100 / 28, rel=0.03)
    around = "80 % of making a batch goes to data.py:12 (decode), 98 % with the rest of that "
    assert finding.title.startswith(f"{around}function; the training process")
    assert not any("of making a batch" in told for told in finding.also)


def test_beside_workers_that_may_lose_the_gain_of_a_line_is_told_once() -> None:
    planted = Planted(
        fetch_s=0.15, running=1.0, compute_s=0.04, cores=2, compute_cores=Interval.exactly(2.0)
    )
    other = replace(hot_line("making batches", share=0.27), site="data.py:27", function="find")
    most = replace(hot_line("making batches", share=0.7), line_share=0.7)
    planted.loader = replace(planted.loader, hot_lines=[most, other])
    finding = only(case_of(planted))
    first = "70 % of making a batch goes to data.py:12 (decode), 27 % to data.py:27 (find); the "
    assert finding.title.startswith(first)
    assert "; then perhaps " in finding.advice
    assert not any("steps would be" in told for told in finding.also)
    assert speedup_words(finding).count(" x as fast") == 1


def test_a_line_that_is_nearly_all_of_a_step_has_no_endless_gain() -> None:
    planted = Planted(fetch_s=0.9, running=1.0, compute_s=0.001, cores=2)
    planted.loader = replace(planted.loader, hot_lines=[hot_line("making batches", share=1.0)])
    finding = only(case_of(planted))
    assert "steps about 100 x as fast without that line" in speedup_words(finding)


@pytest.mark.parametrize("threads", [2.0, 1.0])
def test_workers_may_lose_where_threads_that_compute_wait_for_one_another(threads: float) -> None:
    # Making a batch and computing with it want both cores: what is lost once is lost for all.
    planted = Planted(
        fetch_s=0.15,
        running=1.0,
        compute_s=0.04,
        cores=2,
        compute_cores=Interval.exactly(threads),
    )
    planted.loader = replace(planted.loader, hot_lines=[hot_line("making batches", share=0.7)])
    finding = only(case_of(planted))
    assert finding.id == "serial_loading"
    assert finding.predicted_speedup is not None
    assert (finding.predicted_speedup[0] < 1) is (threads > 1)
    first = "cheaper samples first: data.py:12 (decode); then perhaps "
    assert finding.advice.startswith(first) is (threads > 1)
    assert ("; then perhaps DataLoader(" in finding.advice) is (threads > 1)
    assert finding.title.startswith("70 % of making a batch goes to") is (threads > 1)


def test_workers_cannot_share_an_open_file() -> None:
    planted = Planted(fetch_s=0.03, running=0.6, compute_s=0.01)
    plain = only(case_of(planted))
    assert not any("open" in told for told in plain.cautions)
    assert plain.change["num_workers"] > 0
    planted.loader = replace(planted.loader, open_files=["archive (NpzFile)"])
    finding = only(case_of(planted))
    assert any("archive (NpzFile) open" in told for told in finding.cautions)
    assert any("wrong samples without any error" in told for told in finding.cautions)
    assert finding.advice.startswith("open what the dataset holds open, archive (NpzFile), in")
    assert finding.advice.endswith(plain.advice)
    assert finding.change == {}  # no matter of arguments alone
    assert finding.evidence[MODELLED_WORKERS] == plain.change["num_workers"]


def test_the_gain_of_workers_that_need_something_first_is_the_models() -> None:
    planted = Planted(fetch_s=0.03, compute_s=0.01)  # asleep
    planted.loader = replace(planted.loader, open_files=["archive (NpzFile)"])
    finding = only(case_of(planted))
    assert (finding.is_at_most, finding.change) == (True, {})
    assert speedup_words(finding).endswith("(a model, not measured)")
    # What cheaper samples give is all that they take.
    unsure = {"compute_cores": Interval(1.0, 1.4, 2.0), "receive_s": Interval(0.0, 0.001, 0.012)}
    planted = Planted(fetch_s=0.0065, running=1.0, compute_s=0.0155, cores=2, **unsure)
    planted.loader = replace(planted.loader, hot_lines=[hot_line("making batches")])
    assert " as fast if all of it went, up to about " in speedup_words(only(case_of(planted)))


def test_workers_cannot_make_batches_on_a_device() -> None:
    planted = Planted(fetch_s=0.03, compute_s=0.01)
    plain = only(case_of(planted))
    planted.loader = replace(planted.loader, touches_device=True)
    finding = only(case_of(planted))
    assert finding.advice == (
        "move .to(device) out of the dataset or collate function into the loop, then "
        f"{plain.advice}"
    )
    assert finding.change == {}
    assert "which a forked worker cannot" in minded(finding)
    assert "forked worker" not in minded(plain)
    # Those that there are can: the run shows it.
    planted = Planted(workers=1, fetch_s=0.06, compute_s=0.02)
    plain = only(case_of(planted))
    planted.loader = replace(planted.loader, touches_device=True)
    assert only(case_of(planted)) == plain


def with_shared_memory(total: float | None, used: float | None = 0.0) -> dict[str, Any]:
    """Returns the changes of a summary whose machine has so many MiB of shared memory."""
    plain = summaries.system()
    told = {
        "shm_total_bytes": None if total is None else total * summaries.MIB,
        "shm_used_bytes": None if used is None else {"min": used * summaries.MIB},
    }
    return {"system": replace(plain, memory={**plain.memory, **told})}


def test_batches_that_shared_memory_does_not_hold() -> None:
    """Workers with two batches of a MiB ahead of each."""
    large = Planted(fetch_s=0.03, running=0.6, compute_s=0.01, batch_bytes=1 * summaries.MIB)
    finding = only(case_of(large, **with_shared_memory(8.0, used=4.0)))
    ahead = 2 * finding.change["num_workers"]
    assert ahead > 4
    waiting = f"up to {ahead} batches, {size(ahead * summaries.MIB)}, wait in shared memory"
    said = f"{waiting} (/dev/shm), where 4.00 MiB are"
    assert said in minded(finding)
    assert "docker run --shm-size" in minded(finding)
    enough, unknown = with_shared_memory(64.0), with_shared_memory(None, None)
    for changes in (enough, unknown, with_shared_memory(4.0, None), {}):
        assert "/dev/shm" not in minded(only(case_of(large, **changes)))
    unsized = Planted(fetch_s=0.03, running=0.6, compute_s=0.01)
    assert "/dev/shm" not in minded(only(case_of(unsized, **with_shared_memory(4.0))))


@pytest.mark.parametrize(
    ("change", "is_said"),
    [
        ({"prefetch_factor": 8}, True),
        ({"prefetch_factor": 4}, False),
        ({"num_workers": 6}, True),
        ({"num_workers": 1}, False),
        ({"persistent_workers": True}, False),
    ],
)
def test_more_batches_ahead_may_not_fit_into_shared_memory(
    change: dict[str, Any], is_said: bool
) -> None:
    """Ten batches fit; of two workers there are four ahead now."""
    planted = Planted(workers=2, fetch_s=0.03, batch_bytes=10 * summaries.MIB)
    planted.loader = replace(planted.loader, prefetch_factor=2)
    case = case_of(planted, **with_shared_memory(100.0))
    told = " ".join(cautions_of(case.feeding[0], change))
    assert ("/dev/shm" in told) is is_said
    assert ("batches wait in memory" in told) is (change == {"prefetch_factor": 4})


@pytest.mark.parametrize("started_by", ["fork", "spawn"])
@pytest.mark.parametrize(
    ("facts", "first", "minded"),
    [
        ({}, "", ""),
        ({"guards_main": True}, "", ""),
        ({"guards_main": False}, "put what the script runs under if __name__", ""),
        (
            {"unpicklable": ["collate_fn (a lambda)"]},
            "make collate_fn (a lambda) picklable",
            "(collate_fn (a lambda) cannot)",
        ),
        (
            {"open_files": ["data (BufferedReader)"]},
            "open what the dataset holds open",
            "cannot be given to workers that are started by spawn",
        ),
    ],
)
def test_workers_that_are_no_forks_need_more(
    facts: dict[str, Any], first: str, minded: str, started_by: str
) -> None:
    planted = Planted(fetch_s=0.03, compute_s=0.01)
    plain = only(case_of(planted))
    planted.loader = replace(planted.loader, workers_started_by=started_by, **facts)
    finding = only(case_of(planted))
    if started_by == "fork" and "open_files" not in facts:
        assert finding == plain
        return
    assert finding.advice.startswith(first)
    assert finding.change == ({} if first else plain.change)
    told = " ".join(finding.cautions)
    assert ("must be picklable" in told) is (started_by == "spawn")
    assert (minded in told) is (started_by == "spawn" or not minded)


def test_workers_start_anew_where_training_changes_the_dataset() -> None:
    planted = Planted(fetch_s=0.03, compute_s=0.01)
    planted.loader = replace(planted.loader, changed_between_passes=["level"])
    finding = only(case_of(planted))
    assert finding.change.keys() == {"num_workers"}
    assert "training changes the dataset's level between passes" in minded(finding)
    planted = Planted(workers=2, fetch_s=0.02, passes=10, start_s=0.3)
    assert only(case_of(planted)).change == {"persistent_workers": True}
    planted.loader = replace(planted.loader, changed_between_passes=["level"])
    finding = only(case_of(planted))
    assert (finding.id, finding.change) == ("worker_restart", {})
    assert finding.advice.startswith("keep the dataset's level, which training changes")
    assert "workers keep their copy" in minded(finding)


def minded(finding: Finding) -> str:
    return " ".join(finding.cautions)


def test_the_same_change_is_minded_alike_whoever_advises_it() -> None:
    kept, own = "workers keep their copy of the dataset", "workers have their own copy"
    lost = "what workers change in their copy of the dataset does not come back"
    serial = only(case_of(Planted(fetch_s=0.03, compute_s=0.01)))
    assert serial.change["persistent_workers"] is True
    assert kept in minded(serial)
    assert lost in minded(serial)
    assert own not in minded(serial)
    once = only(case_of(Planted(fetch_s=0.03, compute_s=0.01, passes=1)))
    assert "persistent_workers" not in once.change
    assert own in minded(once)
    assert "what they change in theirs does not come back" in minded(once)
    assert kept not in minded(once)
    assert lost not in minded(once)
    restarted = only(case_of(Planted(workers=2, fetch_s=0.02, passes=10, start_s=0.3)))
    assert restarted.change == {"persistent_workers": True}
    assert [one for one in serial.cautions if "persistent" in one or kept in one] == (
        restarted.cautions
    )
    few = only(case_of(Planted(workers=1, fetch_s=0.06, compute_s=0.02)))
    # There are workers already.
    assert all(told not in minded(one) for one in (few, restarted) for told in (own, lost))


def test_workers_are_added_where_they_sleep() -> None:
    planted = Planted(workers=1, fetch_s=0.06, compute_s=0.02)
    finding = only(case_of(planted))
    assert finding.id == "too_few_workers"
    assert finding.change["num_workers"] in (3, 4)
    assert finding.predicted_speedup is not None
    assert finding.predicted_speedup[0] <= 3.0 <= finding.predicted_speedup[1]


WHOLE = "sampler=BatchSampler(RandomSampler(dataset), 32, drop_last=False), batch_size=None"
BESIDE_WHOLE = ", without shuffle (from torch.utils.data import BatchSampler, RandomSampler)"


def in_rows(**changes: Any) -> Planted:
    """Batches of 32 rows, 10 us each, on steps of 0.5 ms."""
    planted = Planted(**{"fetch_s": 0.00032, "running": 1.0, "compute_s": 0.0005, **changes})
    planted.loader = replace(planted.loader, whole_batches=WHOLE, holds_tensors=True)
    return planted


def test_rows_that_are_asked_for_one_by_one_are_to_be_asked_for_at_once() -> None:
    finding = only(case_of(in_rows()))
    assert (finding.id, finding.site, finding.change) == ("sample_by_sample", "train.py:41", {})
    assert finding.advice == f"DataLoader(..., {WHOLE}){BESIDE_WHOLE}"
    assert (finding.is_at_most, finding.cautions) == (True, [])
    assert finding.evidence["sample_s"] == pytest.approx(10e-6)
    assert finding.evidence[LIKELY] == pytest.approx(0.82 / 0.5, rel=0.05)


def test_rows_that_a_slow_sampler_draws_wait_for_that() -> None:
    planted = in_rows(sampler_s=0.002)
    wait = HotLine("data_wait", "data.py:36", "__iter__", [], 83, 0.56, 3.5, line_share=0.56)
    case = case_of(planted)
    finding = only(replace(case, summary=replace(case.summary, hot_lines=[wait])))
    assert (finding.id, finding.site) == ("slow_sampler", "data.py:36")


def test_a_dataset_of_the_users_own_has_to_take_a_list_then() -> None:
    planted = in_rows()
    planted.loader = replace(planted.loader, holds_tensors=False)
    [caution] = only(case_of(planted)).cautions
    assert caution.startswith("__getitem__ then gets a list of indices")


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("takes_epoch", [True, False, None])
def test_a_sampler_that_is_told_the_epoch_is_told_by_itself_then(
    workers: int, takes_epoch: bool | None
) -> None:
    more: dict[str, Any] = {"receive_s": Interval.exactly(0.001), "delivery_s": 0.001}
    planted = in_rows(workers=workers, **(more if workers else {}))
    asked = WHOLE.replace("RandomSampler(dataset)", "sampler")
    planted.loader = replace(planted.loader, whole_batches=asked, sampler_takes_epoch=takes_epoch)
    finding = only(case_of(planted))
    told = " ".join([finding.advice, *finding.cautions, *finding.also])
    assert f"DataLoader(..., {asked}), with the sampler that it has now (from" in told
    assert ("keep the sampler itself in a variable, and call set_epoch" in told) is bool(
        takes_epoch
    )
    assert not hasattr(torch.utils.data.BatchSampler, "set_epoch")


def test_a_list_of_samples_is_put_into_tensors_first() -> None:
    planted = in_rows()
    planted.loader = replace(planted.loader, holds_tensors=False, is_stackable=True)
    finding = only(case_of(planted))
    assert finding.advice.startswith(
        "dataset = TensorDataset(*default_collate(list(dataset))), once, then DataLoader(..., "
    )
    [caution] = finding.cautions  # it has no __getitem__ to be written anew
    assert caution.startswith("the samples are in memory twice then")


def test_whole_batches_are_for_one_of_the_loaders_of_a_line() -> None:
    """The sampler of training would shuffle evaluation."""
    planted = in_rows()
    plain = only(case_of(planted))
    planted.loader = replace(planted.loader, also_builds=["evaluation"])
    finding = only(case_of(planted))
    alone = "for this loader alone, as its line builds the loader of evaluation too: "
    assert finding.advice == f"{alone}{plain.advice}"
    assert "it counts for" not in minded(finding)
    slow = {"receive_s": Interval.exactly(0.001), "delivery_s": 0.001}
    handed_over = in_rows(workers=2, start_s=0.05, **slow)
    handed_over.loader = replace(handed_over.loader, also_builds=["evaluation"])
    finding = only(case_of(handed_over))
    assert finding.id == "needless_workers"
    assert f"may give more still: {alone}DataLoader(" in finding.also[0]
    # That change is the line's.
    assert "it counts for the loader of evaluation, built by the same line" in finding.cautions


def test_workers_that_fetch_rows_go_with_the_asking() -> None:
    planted = in_rows(
        workers=2,
        is_persistent=False,
        start_s=0.05,
        receive_s=Interval.exactly(0.001),
        delivery_s=0.001,
    )
    finding = only(case_of(planted))  # and not that they are started again for each pass
    assert (finding.id, finding.change) == ("needless_workers", {"num_workers": 0})
    more = f"DataLoader(..., {WHOLE}){BESIDE_WHOLE}"
    assert finding.also == [f"whole batches at once may give more still: {more}"]


def needlessly_handed_over(compute_s: float) -> Planted:
    """Batches of 0.6 ms, 1 ms to take each over: it may be that steps are no shorter without."""
    return in_rows(
        workers=4,
        fetch_s=0.0006,
        compute_s=compute_s,
        cores=2,
        receive_s=Interval(0.0005, 0.001, 0.004),
        delivery_s=0.001,
    )


def test_rows_for_which_workers_are_most_of_the_wait_are_fetched_without_them() -> None:
    finding = only(case_of(needlessly_handed_over(0.004)))
    assert (finding.id, finding.change) == ("needless_workers", {"num_workers": 0})
    assert finding.also[0].startswith("whole batches at once may give more still")


ASKS = {"is_iterable": True, "shares_samples": True}
SET_UP = {"set_up_as_workers_start": True}


def needing_workers(kind: str) -> Planted:
    """Returns what has no use of workers but their start, as far as times tell."""
    if kind == "needless_workers":
        return needlessly_handed_over(0.004)
    plain = {"workers": 2, "fetch_s": 0.0005, "running": 1.0, "compute_s": 0.06, "cores": 2}
    if kind == "worker_restart":
        return Planted(**plain, passes=10, start_s=2.0)
    return Planted(**plain, passes=1, start_s=8.0)


@pytest.mark.parametrize(
    ("facts", "why"),
    [
        (ASKS, "get_worker_info() is None there"),
        (SET_UP, "worker_init_fn, which comes to it, is called in workers alone"),
        ({"is_iterable": True, "shares_samples": False}, None),
        ({"set_up_as_workers_start": None}, None),
        ({"shares_samples": True}, None),  # of no stream
    ],
)
@pytest.mark.parametrize("kind", ["needless_workers", "worker_restart", "slow_first_batch"])
def test_what_needs_workers_has_to_work_without_them_first(
    kind: str, facts: dict[str, Any], why: str | None
) -> None:
    planted = needing_workers(kind)
    planted.loader = replace(planted.loader, **facts)
    finding = only(case_of(planted))
    assert finding.id == kind
    first = f"have the dataset work without workers ({why}), then "
    assert finding.advice.startswith(first if why else "DataLoader(..., num_workers=0)")
    assert finding.change == ({} if why else {"num_workers": 0})
    assert any("are for workers: without any" in one for one in finding.cautions)


def test_workers_that_are_not_advised_to_go_need_nothing_first() -> None:
    planted = Planted(workers=2, fetch_s=0.004, compute_s=0.01, passes=10, start_s=0.1)
    planted.loader = replace(planted.loader, **SET_UP)
    finding = only(case_of(planted))
    assert finding.change == {"persistent_workers": True}
    assert finding.advice == "DataLoader(..., persistent_workers=True)"


def test_beside_workers_that_are_to_go_others_do_not_stay() -> None:
    needless = needlessly_handed_over(0.004)
    evaluating = Planted(
        workers=4,
        fetch_s=0.006,
        start_s=0.3,
        compute_s=0.0005,
        role="evaluation",
        cores=2,
        passes=20,
    )
    evaluating.loader = replace(evaluating.loader, id=1, site="train.py:44")
    case = case_of(needless, evaluating)
    [restart] = [one for one in diagnose(case).findings if one.id == "worker_restart"]
    assert (restart.site, restart.change) == ("train.py:44", {"num_workers": 0})
    assert "its passes would be shorter, for a batch is made in" in restart.title
    unknown = replace(case.evaluating[0], inputs=None, measured=None)
    told = diagnose(replace(case, evaluating=[unknown])).findings
    assert {"persistent_workers": True} in [one.change for one in told]
    alone = only(case_of(Planted(workers=2, fetch_s=0.002), evaluating))
    assert (alone.id, alone.change) == ("worker_restart", {"persistent_workers": True})


@pytest.mark.parametrize(
    "changes",
    [
        {"fetch_s": 0.003},  # samples of 0.1 ms are work
        {"compute_s": 0.005},  # 6 % of a step
    ],
)
def test_samples_that_are_work_and_short_waits_are_asked_for_as_they_are(
    changes: dict[str, float],
) -> None:
    assert "sample_by_sample" not in found(case_of(in_rows(**changes)))


def test_a_dataset_that_takes_lists_already_is_not_told_to() -> None:
    planted = in_rows()
    planted.loader = replace(planted.loader, whole_batches=None)
    assert "sample_by_sample" not in found(case_of(planted))


def handed_over(**changes: Any) -> Planted:
    """Batches of 0.1 ms from two workers, 1 ms to take each over, for steps of 0.5 ms."""
    plain = {"fetch_s": 0.0001, "running": 1.0, "compute_s": 0.0005, "workers": 2, "cores": 4}
    receiving = {"receive_s": Interval.exactly(0.001), "delivery_s": 0.001}
    return Planted(**{**plain, **receiving, "is_persistent": True, **changes})


def test_workers_that_cost_more_than_they_save_are_to_go() -> None:
    finding = only(case_of(handed_over()))
    assert (finding.id, finding.change) == ("needless_workers", {"num_workers": 0})
    assert finding.advice == "DataLoader(..., num_workers=0)"
    assert "persistent_workers" in finding.cautions[0]
    assert finding.predicted_speedup is not None
    # Two and a half times by the model; more, for what sends batches beside it goes, too.
    low, high = finding.predicted_speedup
    assert 2.0 <= low <= 2.5 <= high <= 10.0


def test_workers_that_fill_the_cores_may_slow_everything_by_as_many_as_share_them() -> None:
    def most(workers: int, cores: float) -> float:
        case = case_of(handed_over(workers=workers))
        assert case.summary.system is not None
        system = replace(case.summary.system, cpu={"cores_usable": cores})
        told = only(replace(case, summary=replace(case.summary, system=system)))
        assert (told.id, told.is_at_most) == ("needless_workers", False)
        assert told.predicted_speedup is not None
        return told.predicted_speedup[1]

    assert most(6, 64.0) < most(6, 2.0)


def test_what_starting_needless_workers_takes_goes_too() -> None:
    plain = {"passes": 10, "is_persistent": False}
    quick, slow = (case_of(handed_over(**plain, start_s=s)) for s in (0.0, 0.1))
    kept, started = only(quick), only(slow)
    assert (kept.id, started.id) == ("needless_workers", "needless_workers")
    assert "starting and ending them for each of 10 passes" in started.title
    assert "starting" not in kept.title
    saved = (started.recoverable_s or 0.0) - (kept.recoverable_s or 0.0)
    assert saved == pytest.approx(10 * 0.1, rel=0.1)


def test_a_rule_that_fails_ends_no_other() -> None:
    case, failed = case_of(handed_over()), []

    def find(case: Case) -> Finding | None:
        raise ZeroDivisionError("no loader")

    broken = [replace(RULES[0], find=find), *RULES[1:]]
    told = diagnose(
        case, broken, failed=lambda rule, error: failed.append((rule, str(error)))
    ).findings
    assert [one.id for one in told] == ["needless_workers"]
    assert failed == [(RULES[0].id, "no loader")]
    with pytest.raises(ZeroDivisionError):
        diagnose(case, broken)


def test_workers_that_are_worth_it_stay() -> None:
    # Without them a step would take 3.5 ms instead of 1.6.
    assert "needless_workers" not in found(case_of(handed_over(fetch_s=0.003)))
    # Asleep for 20 ms, two of them are too few.
    assert found(case_of(handed_over(fetch_s=0.02, running=0.0))) == ["too_few_workers"]


def test_batches_that_were_there_are_not_late() -> None:
    planted = Planted(workers=2, fetch_s=0.003, bursts=(30, 11, 13.3), compute_s=0.0126, passes=1)
    assert found(case_of(planted)) == ["uneven_batches"]
    were_there = 0.1 * planted.loader.wait_total_s
    planted.loader = replace(planted.loader, blocked_s=were_there)
    assert found(case_of(planted)) == []


def test_full_cores_want_cheaper_samples_and_no_workers() -> None:
    planted = Planted(workers=2, fetch_s=0.08, running=1.0, compute_s=0.01, cores=2)
    planted.loader = replace(planted.loader, hot_lines=[hot_line("making batches")])
    finding = only(case_of(planted))
    assert (finding.id, finding.site, finding.change) == ("saturated_cpu", "data.py:12", {})
    assert finding.is_at_most
    assert "decode" in finding.advice


def in_memory(free_gib: float, **changes: Any) -> list[str]:
    """What the finding says besides, of 100 batches of 4.6 MiB in two passes."""
    planted = Planted(workers=2, fetch_s=0.08, running=1.0, compute_s=0.01, cores=2)
    planted.loader = replace(planted.loader, **{"length": 100, **changes})
    memory = {"host_available_bytes": {"min": free_gib * (1 << 30)}}
    finding = only(case_of(planted, system=summaries.system(memory=memory)))
    assert finding.id == "saturated_cpu"
    return [told for told in finding.also if told.startswith("each pass makes its samples anew")]


def test_what_is_made_again_and_would_fit_into_memory_is_said() -> None:
    (told,) = in_memory(8.0)
    assert "460 MiB as they come out in each worker, and 8.00 GiB of memory are free" in told
    assert in_memory(3.0) == []
    assert in_memory(8.0, length=200) == []  # one pass alone
    assert in_memory(8.0, is_iterable=True) == []


def crowded(runnable: float = 0.5, threads: float = 2.0, **changes: Any) -> Case:
    """Workers whose threads have too few cores: batches take long, and unevenly."""
    plain = {"workers": 2, "fetch_s": 0.02, "running": 1 - runnable, "compute_s": 0.008, "cores": 2}
    planted = Planted(**{**plain, **changes})
    fetch = planted.loader.fetch
    assert fetch is not None
    assert fetch.running_s is not None
    made_s = fetch.wall_s.mean * fetch.n if fetch.wall_s is not None else 0.0
    fetch = replace(
        fetch, runnable_s=runnable * made_s, asleep_s=0.0, cpu_s=threads * fetch.running_s
    )
    planted.loader = replace(planted.loader, fetch=fetch)
    case = case_of(planted)
    system = case.summary.system
    assert system is not None
    system = replace(system, cpu={**system.cpu, "cores_usable": planted.inputs.cores})
    return replace(case, summary=replace(case.summary, system=system))


def test_threads_of_libraries_that_take_the_cores_from_each_other_come_first() -> None:
    finding = diagnose(crowded()).findings[0]
    assert (finding.id, finding.site) == ("worker_threads", "train.py:41")
    assert "2.0 threads compute in each of 2 workers, on 2 cores" in finding.title
    assert "a batch waits for a core for 50 % of its making" in finding.title
    assert finding.recoverable_s is None
    assert found(crowded()) == ["worker_threads"]  # and what comes of it is not told beside it
    others = diagnose(
        crowded(passes=5, start_s=0.1)
    ).findings  # what may be slowed by it comes behind it
    assert [one.id for one in others] == ["worker_threads", "worker_restart"]
    assert together(crowded(), others) is None


@pytest.mark.parametrize(
    "changes",
    [
        {"threads": 1.1},  # one each: they are many workers, or the work is much
        {"runnable": 0.1},  # who want a core have it
        {"cores": 16},
        {"fetch_s": 0.001},  # hardly ever at work
    ],
)
def test_threads_that_have_their_cores_are_no_finding(changes: dict[str, float]) -> None:
    assert "worker_threads" not in found(crowded(**changes))


def with_torch(threads: WorkerThreads | None, **changes: Any) -> Case:
    """Workers whose batches wait for cores and for threads of their own: on one for half of it."""
    plain = {"workers": 2, "fetch_s": 0.04, "running": 0.5, "compute_s": 0.008, "cores": 2}
    planted = Planted(**{**plain, **changes})
    made_s = planted.inputs.fetch_s
    parts = {"runnable_s": 0.3 * made_s, "cpu_s": 0.6 * made_s}
    planted.inputs = replace(planted.inputs, **parts)
    fetch = planted.loader.fetch
    assert fetch is not None
    fetch = replace(fetch, **{name: float(part.sum()) for name, part in parts.items()})
    planted.loader = replace(planted.loader, fetch=fetch, worker_threads=threads)
    case = case_of(planted)
    assert case.summary.system is not None
    cpu = {**case.summary.system.cpu, "cores_usable": planted.inputs.cores}
    return replace(
        case, summary=replace(case.summary, system=replace(case.summary.system, cpu=cpu))
    )


def test_torchs_threads_in_workers_are_told_with_the_line_that_sets_them() -> None:
    case = with_torch(WorkerThreads(8, "train.py:69"))
    finding = diagnose(case).findings[0]
    assert (finding.id, finding.site) == ("worker_threads", "train.py:69")
    assert "torch computes with 8 threads in each of 2 workers, on 2 cores" in finding.title
    assert "take out torch.set_num_threads at train.py:69" in finding.advice
    assert "cv2" not in finding.advice
    # 20 ms on a core in each of two workers and 8 to train want 14 ms of both; it took 20.
    assert finding.is_at_most
    assert finding.predicted_speedup is not None
    assert finding.predicted_speedup[0] == 1.0
    assert 1.2 < finding.evidence[LIKELY] < 1.5
    others = [one.id for one in diagnose(case).findings[1:]]
    assert not {"saturated_cpu", "crowded_cores", "too_few_workers"} & {*others}


def test_beside_busy_programs_no_gain_of_fewer_threads_is_told() -> None:
    case = with_torch(WorkerThreads(8, "train.py:69"))
    assert case.summary.system is not None
    cpu = summaries.system().cpu | {
        "cores_usable": 2.0,
        "per_core_percent": [100.0, 100.0],
        "host_percent": {"mean": 100.0},
        "tree_percent": {"mean": 100.0},
        "pressure_some_share": 0.9,
    }
    system = replace(case.summary.system, cpu=cpu)
    finding = diagnose(replace(case, summary=replace(case.summary, system=system))).findings[0]
    assert (finding.id, finding.site) == ("worker_threads", "train.py:69")
    assert finding.predicted_speedup is None
    assert any("kept 1.0 of 2 cores busy" in told for told in finding.cautions)


def test_where_no_line_is_known_that_sets_torchs_threads_the_loader_is_named() -> None:
    finding = diagnose(with_torch(WorkerThreads(8, opencv=4))).findings[0]
    assert (finding.id, finding.site) == ("worker_threads", "train.py:41")
    assert "torch.set_num_threads(1) in worker_init_fn; cv2.setNumThreads(0)" in finding.advice


@pytest.mark.parametrize(
    ("threads", "changes"),
    [
        (None, {}),  # an older run
        (1, {}),  # as torch has it, or as they set it themselves
        (2, {"cores": 8}),
        (8, {"compute_s": 0.1}),  # batches are there in time, and are hardly ever made
        (8, {"fetch_s": 0.001}),
    ],
)
def test_torchs_threads_in_workers_that_cost_nothing(
    threads: int | None, changes: dict[str, float]
) -> None:
    told = None if threads is None else WorkerThreads(threads, "train.py:69")
    assert "worker_threads" not in found(with_torch(told, **changes))


def test_workers_that_sleep_do_not_wait_for_threads_that_have_nothing_to_do() -> None:
    """What a network takes is not what one thread in each would save."""
    case = with_torch(WorkerThreads(8, "train.py:69"), running=0.05)
    [fed] = case.feeding
    assert fed.inputs is not None
    idle = replace(fed.inputs, runnable_s=None, cpu_s=1.02 * fed.inputs.running_s)
    assert on_one_thread(idle, 0.0).fetch_s.mean() > 0.99 * fed.inputs.fetch_s.mean()
    unmeasured = replace(fed.inputs, cpu_s=None)
    assert on_one_thread(unmeasured, 0.0) is unmeasured


@pytest.mark.parametrize(
    ("busy", "expected"),
    [(0.0, (0.0, 0.0, 0.0)), (1.5, (1.0, 1.5, 1.5)), (None, (1.0, 2.0, 4.0))],
)
def test_other_programs_take_the_cores_all_the_same(
    busy: float | None, expected: tuple[float, float, float]
) -> None:
    [fed] = with_torch(WorkerThreads(8)).feeding
    assert fed.inputs is not None
    inputs = replace(fed.inputs, others=Interval(1.0, 2.0, 4.0))
    assert on_one_thread(inputs, busy).others == Interval(*expected)


def test_opencvs_threads_are_named_where_the_kernel_counts_too_many() -> None:
    case = crowded()
    fed = case.feeding[0]
    fed = replace(fed, loader=replace(fed.loader, worker_threads=WorkerThreads(1, opencv=8)))
    finding = diagnose(replace(case, feeding=[fed])).findings[0]
    assert (finding.id, finding.site) == ("worker_threads", "train.py:41")
    assert "cv2.setNumThreads(0) in worker_init_fn, for OpenCV has 8 there" in finding.advice


def test_cores_that_are_half_idle_are_not_what_is_short() -> None:
    # Two workers of which each is on a core for 56 %: three and a half would fill both.
    finding = only(
        case_of(Planted(workers=2, fetch_s=0.14, running=0.56, compute_s=0.006, cores=2))
    )
    assert (finding.id, finding.change["num_workers"]) == ("too_few_workers", 4)
    assert not [told for told in finding.cautions if "disk" in told]


def test_more_workers_share_the_disk_that_they_read_from() -> None:
    planted = Planted(workers=1, fetch_s=0.06, running=0.6, reading=0.35, compute_s=0.006, cores=2)
    finding = only(case_of(planted))
    assert finding.id == "too_few_workers"
    assert any(told.startswith("35 % of making a batch is reading") for told in finding.cautions)


def test_what_a_disk_gives_to_more_workers_nobody_knows() -> None:
    """The kernel does not tell what was waited for, but much was read meanwhile."""
    planted = Planted(workers=1, fetch_s=0.08, compute_s=0.01)
    assert planted.loader.fetch is not None
    asleep = 0.08 * STEPS
    for read_bytes, is_likely in ((round(200e6 * asleep), True), (round(1e6 * asleep), False)):
        fetch = replace(planted.loader.fetch, read_bytes=read_bytes)
        planted.loader = replace(planted.loader, fetch=fetch)
        finding = only(case_of(planted))
        assert (finding.id, finding.is_at_most) == ("too_few_workers", True)
        told = [x for x in finding.cautions if "read from disk meanwhile, which more" in x]
        assert bool(told) is is_likely


def test_much_reading_is_named_where_neither_workers_nor_cores_are_short() -> None:
    # Forty workers at one disk: no more are tried.
    planted = Planted(workers=40, fetch_s=0.8, running=0.3, reading=0.4, compute_s=0.005, cores=40)
    assert found(case_of(planted)) == ["storage_bound"]


def test_one_core_wants_cheaper_samples_without_workers_too() -> None:
    planted = Planted(fetch_s=0.03, running=1.0, compute_s=0.03, cores=1)
    finding = only(case_of(planted))
    assert finding.id == "saturated_cpu"
    assert "itself (num_workers=0) and waits 30.0 ms of 60.0 ms a batch, 50 %" in finding.title
    assert "that training computes on, and not help" in finding.title


def test_reading_is_named_where_bytes_were_read() -> None:
    planted = Planted(workers=4, fetch_s=0.08, reading=0.9, compute_s=0.005)
    finding = only(case_of(planted))
    assert finding.id == "storage_bound"
    assert finding.evidence["reading_share"] == pytest.approx(0.9)
    assert planted.loader.fetch is not None
    nothing = replace(planted.loader, fetch=replace(planted.loader.fetch, read_bytes=0))
    planted.loader = nothing
    assert "storage_bound" not in found(case_of(planted))


@pytest.mark.parametrize(
    ("read", "calls", "told"),
    [
        (40e6, 2000, "for a read brings 20 KiB: small files as one"),
        (400e6, 200, "a faster disk"),
        (None, None, "a faster disk"),
    ],
)
def test_small_reads_want_larger_files(read: float | None, calls: float | None, told: str) -> None:
    planted = Planted(workers=2, fetch_s=0.08, reading=0.9, compute_s=0.005)
    rows = [
        {"worker": number, "read_bytes_per_s": read, "read_calls_per_s": calls}
        for number in range(2)
    ]
    assert planted.loader.fetch is not None
    planted.loader = replace(planted.loader, fetch=replace(planted.loader.fetch, per_worker=rows))
    assert told in only(case_of(planted)).advice


def test_a_few_slow_samples_are_named() -> None:
    planted = Planted(workers=2, fetch_s=0.01, compute_s=0.01, slow_every=40)
    finding = only(case_of(planted))
    assert finding.id == "slow_samples"
    of_run = "trainprof report trainprof-runs/healthy-20261121-034512-c01d --loader 0"
    assert finding.advice == f"mend or leave out the slow samples: {of_run} lists them"
    assert "dataset[0]" in finding.title
    assert finding.evidence["slow_indices"] == list(range(STEPS // 40))
    [caution] = finding.cautions
    assert "missed where they are left out: shorten or cache those" in caution


def test_samples_that_begin_a_part_of_the_data_are_not_to_be_left_out() -> None:
    planted = Planted(workers=2, fetch_s=0.01, compute_s=0.01, slow_every=40)
    fetch = planted.loader.fetch
    assert fetch is not None
    slow = [{**one, "index": 1000 * number} for number, one in enumerate(fetch.slow_samples)]
    planted.loader = replace(planted.loader, fetch=replace(fetch, slow_samples=slow))
    assert "slow_samples" not in found(case_of(planted))


def test_slow_samples_are_named_beside_what_handing_over_costs() -> None:
    # A batch is late now and then; that each takes 2 ms to be taken over is no matter of samples.
    handed_over = {"receive_s": Interval.exactly(0.002), "delivery_s": 0.002}
    planted = Planted(workers=2, fetch_s=0.006, compute_s=0.006, slow_every=40, **handed_over)
    assert found(case_of(planted)) == ["slow_samples"]


def test_batches_of_uneven_cost_want_more_of_them_ahead() -> None:
    planted = Planted(workers=2, fetch_s=0.003, bursts=(30, 11, 13.3), compute_s=0.0126, passes=1)
    case = case_of(planted)
    finding = only(case)
    assert (finding.id, finding.site) == ("uneven_batches", "train.py:41")
    assert finding.change == {"prefetch_factor": 8}
    assert finding.advice == "DataLoader(..., prefetch_factor=8)"
    assert "3.00 ms" in finding.title
    assert "39.9 ms" in finding.title
    (caution,) = finding.cautions
    assert caution.startswith("up to 16 batches wait in memory")
    low, high = finding.predicted_speedup or (0, 0)
    # Without any wait a step would take 12.6 ms.
    assert low < planted.step_s.mean() / 0.0126 < high


def test_late_batches_are_named_beside_what_handing_over_costs() -> None:
    # Of 15.0 ms a step 0.9 are for late batches, and 1.5 ms for taking over any.
    handed_over = {"receive_s": Interval.exactly(0.0015), "delivery_s": 0.0015}
    bursts = (30, 11, 12.8)
    planted = Planted(
        workers=2, fetch_s=0.003, bursts=bursts, compute_s=0.0126, passes=1, **handed_over
    )
    case = case_of(planted)
    assert case.feeding[0].now is not None
    parts_s = case.feeding[0].now.bound.parts_s
    assert 0.05 * sum(parts_s.values()) < parts_s[BLOCKED] < parts_s[RECEIVE]
    finding = only(case)
    assert finding.id == "uneven_batches"
    # More batches ahead delay none.
    assert (finding.predicted_speedup or (0, 0))[0] == 1.0


def test_uneven_batches_that_workers_cannot_make_want_more_workers() -> None:
    """No buffer lasts where they are made more slowly than they are used, on the whole."""
    short = Planted(workers=2, fetch_s=0.006, bursts=(30, 11, 13.3), compute_s=0.01, passes=1)
    assert found(case_of(short)) == ["too_few_workers"]


def test_slow_samples_that_more_batches_ahead_would_hide() -> None:
    planted = Planted(workers=2, fetch_s=0.004, slow_every=20, compute_s=0.012)
    finding = only(case_of(planted))
    assert finding.id == "slow_samples"
    hidden = "more batches ahead would hide most of them: DataLoader(..., prefetch_factor=4)"
    assert hidden in finding.also


def shared_out(*batches: int, **changes: Any) -> Planted:
    """A stream of which one worker makes nearly all batches, however many there are."""
    planted = Planted(workers=len(batches), fetch_s=0.02, compute_s=0.01, turnaround_s=0.02)
    assert planted.loader.fetch is not None
    rows = [{"worker": number, "n": n, "seconds": n * 0.02} for number, n in enumerate(batches)]
    fetch = replace(planted.loader.fetch, per_worker=rows)
    planted.loader = replace(planted.loader, fetch=fetch, **{"is_iterable": True, **changes})
    return planted


def test_workers_that_get_nothing_of_the_data() -> None:
    finding = only(case_of(shared_out(198, 2)))
    assert (finding.id, finding.site, finding.change) == ("idle_workers", "train.py:41", {})
    assert finding.title.startswith("one of 2 workers makes 99 % of the batches")
    assert finding.evidence["batches_by_worker"] == {"0": 198, "1": 2}
    low, high = finding.predicted_speedup or (0, 0)
    assert low < 2.0 < high  # two workers would just keep up


def test_workers_that_share_alike_are_no_finding_of_that_kind() -> None:
    assert found(case_of(shared_out(100, 100))) == ["too_few_workers"]
    assert found(case_of(shared_out(198, 2, is_iterable=False))) == ["too_few_workers"]


def test_from_how_many_fair_shares_on_is_for_the_user_to_say() -> None:
    # 198 of 200 batches are 1.98 fair shares of two workers.
    for fair_shares, rule in ((1.98, "idle_workers"), (1.99, "too_few_workers")):
        case = case_of(shared_out(198, 2), settings={"idle_workers.fair_shares": fair_shares})
        assert found(case) == [rule]
    alike = shared_out(120, 80)
    assert found(case_of(alike)) == ["too_few_workers"]
    assert found(case_of(alike, settings={"idle_workers.fair_shares": 1.2})) == ["idle_workers"]


def test_long_waits_for_a_core_tell_that_cores_are_short() -> None:
    """Where others take them, too: the run's own work would not fill them."""
    planted = Planted(workers=2, fetch_s=0.08, running=0.5, compute_s=0.005, cores=2)
    assert planted.loader.fetch is not None
    waited = replace(planted.loader.fetch, runnable_s=0.4 * 0.08 * STEPS, asleep_s=0.0)
    planted.loader = replace(planted.loader, fetch=waited)
    planted.inputs = replace(planted.inputs, runnable_s=planted.inputs.fetch_s * 0.5)
    finding = only(case_of(planted))
    assert finding.id == "saturated_cpu"
    # Without running nobody waits for a core: nothing is left of making batches.
    assert finding.predicted_speedup is not None
    assert finding.predicted_speedup[1] > 6


def test_a_collate_function_that_takes_most_of_a_batch() -> None:
    planted = Planted(fetch_s=0.03, running=1.0, compute_s=0.02, collate=0.8)
    finding = only(case_of(planted))
    assert (finding.id, finding.site) == ("slow_collate", "data.py:30")
    assert finding.evidence["collate_per_batch_s"] == pytest.approx(0.024)
    assert finding.predicted_speedup is not None
    assert finding.predicted_speedup[1] == pytest.approx(0.05 / 0.026, rel=0.25)
    assert any("num_workers=" in sentence for sentence in finding.also)
    # Whoever takes more than the dataset has is the function, or called by it.
    lines = [replace(hot_line("making batches", share), site="data.py:33") for share in (0.7, 0.15)]
    named = {}
    for line in lines:
        planted.loader = replace(planted.loader, hot_lines=[line])
        named[line.share] = only(case_of(planted)).site
    assert named == {0.7: "data.py:33", 0.15: "data.py:30"}


def test_beside_a_collate_function_workers_are_told_as_the_model_sees_them() -> None:
    plain = Planted(fetch_s=0.03, running=1.0, compute_s=0.02, collate=0.8)
    assert "would help too: steps 2.38 to 3.10 x as fast" in only(case_of(plain)).also[0]
    # Where they may as well take what they give, they are not recommended.
    unsure = {"compute_cores": Interval(1.0, 1.2, 2.0), "receive_s": Interval(0.0, 0.001, 0.012)}
    crowded = Planted(fetch_s=0.009, running=1.0, compute_s=0.012, collate=0.99, cores=2, **unsure)
    finding = only(case_of(crowded))
    assert finding.id == "slow_collate"
    assert not any("would help too" in told for told in finding.also)


@pytest.mark.parametrize("waits", [True, False])
def test_no_more_workers_than_cores_where_they_only_compute(waits: bool) -> None:
    """Eight on two cores: each batch takes 80 ms of one, and waits for it thrice as long."""
    planted = Planted(workers=8, fetch_s=0.32, running=0.25, compute_s=0.01, cores=2)
    [fed] = case_of(planted).feeding
    assert fed.loader.fetch is not None
    assert fed.inputs is not None
    asleep_s = 0.0 if waits else 0.75 * 0.32 * STEPS
    inputs = replace(fed.inputs, fetch_slowdown=3.0 if waits else 0.0)
    loader = replace(fed.loader, fetch=replace(fed.loader.fetch, asleep_s=asleep_s))
    told = fewer_workers(replace(fed, loader=loader, inputs=inputs, now=predict(inputs)))
    more = "2 workers would make batches about as fast on the 2 cores as 8 do"
    assert [one.startswith(more) for one in told] == ([True] if waits else [])


def test_a_collate_function_that_keeps_its_worker_from_handing_batches_over() -> None:
    # Each is made in time, and handed over late: its worker is at the next one.
    late = {"receive_s": Interval.exactly(0.001), "handover_s": Interval.exactly(0.008)}
    handed_over = {**late, "delivery_s": 0.009}
    planted = Planted(
        workers=1, fetch_s=0.024, running=1.0, compute_s=0.016, collate=0.99, **handed_over
    )
    planted.loader = replace(planted.loader, receive_s=0.009 * STEPS, receive_cpu_s=0.001 * STEPS)
    finding = only(case_of(planted))
    assert (finding.id, finding.site) == ("slow_collate", "data.py:30")
    assert finding.predicted_speedup is not None
    assert finding.predicted_speedup[1] == pytest.approx(0.025 / 0.017, rel=0.25)


@pytest.mark.parametrize("collate", [0.3, None])
def test_a_collate_function_that_does_little_or_is_torchs_own(collate: float | None) -> None:
    planted = Planted(fetch_s=0.03, running=1.0, compute_s=0.02, collate=collate)
    assert found(case_of(planted)) == ["serial_loading"]
    in_time = Planted(workers=2, fetch_s=0.01, compute_s=0.02, collate=0.9)
    assert found(case_of(in_time)) == []


def test_a_wait_of_the_first_pass_alone_is_over() -> None:
    cold = Planted(fetch_s=0.01, compute_s=0.01, passes=5, cold_passes=1)
    assert cold.loader.wait_total_s > 0.1 * float(cold.step_s.sum())
    assert found(case_of(cold)) == []
    still = Planted(fetch_s=0.01, compute_s=0.01, passes=5, cold_passes=4)
    assert found(case_of(still)) == ["serial_loading"]


def test_receiving_is_not_blamed_on_workers() -> None:
    planted = Planted(
        workers=4, fetch_s=0.004, compute_s=0.01, receive_s=Interval.exactly(0.02), delivery_s=0.02
    )
    planted.loader = replace(planted.loader, receive_s=0.02 * STEPS, receive_cpu_s=0.019 * STEPS)
    finding = only(case_of(planted))
    assert (finding.id, finding.site) == ("slow_receive", "train.py:41")
    assert "waiting" not in finding.title
    own = Planted(workers=4)
    own.inputs, own.loader = planted.inputs, replace(planted.loader, collate_site="data.py:30")
    assert only(case_of(own)).site == "data.py:30"
    planted.loader = replace(planted.loader, receive_cpu_s=0.001 * STEPS)
    plain = only(case_of(planted))
    assert "waiting for its process, which is asked for each tensor" in plain.title
    assert plain.advice.startswith("few large tensors")
    planted.loader = replace(planted.loader, kind="StatefulDataLoader")
    stateful = only(case_of(planted))
    assert "mostly waiting for its process; more" in stateful.title
    assert stateful.advice.startswith("StatefulDataLoader(..., snapshot_every_n_steps=N)")


def test_drawing_indices_is_not_blamed_on_workers() -> None:
    planted = Planted(workers=4, fetch_s=0.004, compute_s=0.01, sampler_s=0.02)
    finding = only(case_of(planted))
    assert finding.id == "slow_sampler"
    assert "has to be drawn anew in each pass" in minded(finding)
    assert finding.predicted_speedup is not None
    assert finding.predicted_speedup[1] == pytest.approx(3.0 / (1 - 0.25 * 2 / 3), rel=0.15)


def test_workers_that_are_started_for_each_pass_are_to_be_kept() -> None:
    planted = Planted(workers=2, fetch_s=0.004, compute_s=0.01, passes=10, start_s=0.1)
    finding = only(case_of(planted))
    assert (finding.id, finding.change) == ("worker_restart", {"persistent_workers": True})
    assert finding.recoverable_s == pytest.approx(9 * 0.1, rel=0.1)
    kept = Planted(
        workers=2, fetch_s=0.004, compute_s=0.01, passes=10, start_s=0.0, is_persistent=True
    )
    assert found(case_of(kept)) == []


@pytest.mark.parametrize(("fetch_s", "is_told"), [(0.0005, True), (0.02, False)])
def test_workers_that_hardly_help_need_not_be_started_at_all(fetch_s: float, is_told: bool) -> None:
    planted = Planted(
        workers=2, fetch_s=fetch_s, running=1.0, compute_s=0.06, passes=10, start_s=0.3, cores=2
    )
    finding = only(case_of(planted))
    assert finding.id == "worker_restart"
    assert any("(num_workers=0) steps would" in one for one in finding.also) is is_told


def test_workers_that_take_long_to_start_and_hardly_help_are_to_go() -> None:
    plain = {"workers": 2, "fetch_s": 0.0005, "running": 1.0, "compute_s": 0.06, "cores": 2}
    planted = Planted(**plain, passes=10, start_s=2.0)
    finding = only(case_of(planted))
    assert (finding.id, finding.change) == ("worker_restart", {"num_workers": 0})
    # The first start goes, too.
    assert finding.recoverable_s == pytest.approx(10 * 2.0, rel=0.1)
    rebuilt = Planted(**plain, passes=10, start_s=0.3)
    rebuilt.loader = replace(rebuilt.loader, built=10)
    assert only(case_of(rebuilt)).change == {"num_workers": 0}
    late = Planted(**plain, passes=1, start_s=8.0)
    finding = only(case_of(late))
    assert (finding.id, finding.change) == ("slow_first_batch", {"num_workers": 0})


def test_a_part_of_a_run_does_not_tell_what_comes_once() -> None:
    case = case_of(needing_workers("slow_first_batch"))
    assert found(case) == ["slow_first_batch"]
    run = replace(case.summary.run, part="epoch 2")
    assert found(replace(case, summary=replace(case.summary, run=run))) == []


@pytest.mark.parametrize("shares", [True, False, None])
def test_workers_of_a_stream_have_to_share_it(shares: bool | None) -> None:
    planted = Planted(fetch_s=0.03, running=0.6, compute_s=0.01)
    planted.loader = replace(planted.loader, is_iterable=True, shares_samples=shares)
    finding = only(case_of(planted))
    assert finding.id == "serial_loading"
    advice, minded = finding.advice or "", " ".join(finding.cautions)
    assert ("get_worker_info()), then DataLoader(" in advice) is (shares is False)
    assert (finding.change == {}) is (shares is False)
    assert ("nowhere asks" in minded) is (shares is False)
    assert ("unless it asks" in minded) is (shares is None)


@pytest.mark.parametrize(
    ("shards", "workers", "said"),
    [
        (1, 1, "the stream is one shard: a second worker would get nothing of it"),
        (2, 2, "the stream is 2 shards: more workers than that would get nothing of it"),
        (8, 3, ""),
    ],
)
def test_no_more_workers_than_a_stream_has_shards(shards: int, workers: int, said: str) -> None:
    planted = Planted(fetch_s=0.03, running=0.6, compute_s=0.01, shards=shards)
    planted.loader = replace(planted.loader, is_iterable=True)
    finding = only(case_of(planted))
    assert (finding.id, finding.change["num_workers"]) == ("serial_loading", workers)
    assert said in minded(finding)
    assert ("shard" in minded(finding)) is bool(said)
    assert "get_worker_info" not in minded(finding)  # it shares itself out


def test_one_worker_has_a_stream_to_itself() -> None:
    planted = Planted(fetch_s=0.008, running=0.6, compute_s=0.01)
    planted.loader = replace(planted.loader, is_iterable=True, shares_samples=False)
    finding = only(case_of(planted))
    assert finding.change["num_workers"] == 1
    assert not any("get_worker_info" in one for one in (finding.advice, *finding.cautions))


def without_workers(case: Case, loader: Loader) -> list[str]:
    """Returns what is to be minded where a loader's workers are taken away."""
    fed = replace(case.feeding[0], loader=replace(loader, num_workers=loader.num_workers or 2))
    return cautions_of(fed, {"num_workers": 0})


def test_only_what_is_shuffled_comes_in_another_order() -> None:
    planted = Planted(workers=2, fetch_s=0.004, compute_s=0.01, passes=10, start_s=0.3)
    assert any("shuffling" in one for one in only(case_of(planted)).cautions)
    for changes in ({"is_iterable": True}, {"draws_in_order": True}):
        other = Planted(workers=2, fetch_s=0.004, compute_s=0.01, passes=10, start_s=0.3)
        other.loader = replace(other.loader, **changes)
        assert not any("shuffling" in one for one in only(case_of(other)).cautions)
        kept = replace(other.loader, persistent_workers=True)
        assert not any("shuffling" in one for one in without_workers(case_of(other), kept))


@pytest.mark.parametrize(
    ("changes", "is_told"),
    [
        ({}, True),
        ({"holds_tensors": True}, False),
        ({"holds_tensors": True, "collate_site": "train.py:3"}, True),
    ],
)
def test_augmentation_is_minded_where_there_may_be_any(
    changes: dict[str, Any], is_told: bool
) -> None:
    planted = Planted(fetch_s=0.03, running=0.6, compute_s=0.01)
    planted.loader = replace(planted.loader, **changes)
    found_in = [one for one in only(case_of(planted)).cautions if "augmentation" in one]
    assert bool(found_in) is is_told
    assert (
        bool([x for x in without_workers(case_of(planted), planted.loader) if "augment" in x])
        is is_told
    )


@pytest.mark.parametrize(
    ("planted", "said", "not_said"),
    [
        ({"fetch_s": 0.03}, "each worker would draw the same numbers from its copy;", "again"),
        ({"fetch_s": 0.03, "passes": 1}, "from its copy, the same again in each pass", "other"),
        ({"fetch_s": 0.06, "compute_s": 0.02, "workers": 1}, "each worker would draw", "other"),
        ({"fetch_s": 0.06, "compute_s": 0.015, "workers": 2}, "", "self.rng"),  # they do so now
    ],
)
def test_workers_have_equal_copies_of_a_generator(
    planted: dict[str, Any], said: str, not_said: str
) -> None:
    plain = Planted(**planted)
    change = only(case_of(plain)).change
    plain.loader = replace(plain.loader, generators=["rng"])
    finding = only(case_of(plain))
    assert finding.change == change
    assert finding.change["num_workers"] > 1
    assert said in minded(finding)
    assert not_said not in minded(finding).replace("other numbers from the second pass", "")
    assert "augmentation, if there is any, draws other" not in minded(finding)


def test_a_loader_that_is_built_anew_for_each_pass_is_to_be_built_once() -> None:
    planted = Planted(workers=2, fetch_s=0.004, compute_s=0.01, passes=10, start_s=0.1)
    planted.loader = replace(planted.loader, built=10)
    finding = only(case_of(planted))
    assert (finding.id, finding.change) == ("worker_restart", {})
    assert finding.advice.startswith("build it once, ahead of all passes")
    assert finding.recoverable_s == pytest.approx(9 * 0.1, rel=0.1)
    serial = Planted(fetch_s=0.03, compute_s=0.01)
    serial.loader = replace(serial.loader, built=serial.loader.passes)
    finding = only(case_of(serial))
    assert finding.change == {"num_workers": 3}  # nothing lives on from pass to pass
    assert any("built anew for each pass" in told for told in finding.cautions)
    # It does not help that its workers would live on.
    planted.loader = replace(planted.loader, persistent_workers=True)
    assert found(case_of(planted)) == ["worker_restart"]
    # A package that builds it knows what it does.
    serial.loader = replace(serial.loader, built_by="transformers")
    assert "persistent_workers" in only(case_of(serial)).change


def built_anew(planted: Planted, **facts: Any) -> Planted:
    """Returns a loader that is built anew for each pass."""
    planted.loader = replace(planted.loader, built=planted.loader.passes, **facts)
    return planted


def test_built_once_workers_would_not_see_what_training_changes() -> None:
    plain = {"fetch_s": 0.004, "compute_s": 0.01, "passes": 10, "start_s": 0.1}
    finding = only(
        case_of(built_anew(Planted(workers=2, **plain), changed_between_passes=["level"]))
    )
    assert (finding.id, finding.change) == ("worker_restart", {})
    assert finding.advice.startswith("keep the dataset's level, which training changes")
    assert ", then build it once, ahead of all passes" in finding.advice
    serial = Planted(fetch_s=0.03, compute_s=0.01)
    finding = only(case_of(built_anew(serial, changed_between_passes=["level"])))
    assert "it is built anew for each pass, and its workers with it: more of" in minded(finding)
    assert "persistent_workers=True has to stay away" in minded(finding)
    assert "built once" not in minded(finding)


@pytest.mark.parametrize("datasets", [10, 8, 7, 1, None])
def test_each_pass_has_another_dataset(datasets: int | None) -> None:
    planted = Planted(workers=2, fetch_s=0.018, compute_s=0.01, passes=10, start_s=0.1)
    finding = only(case_of(built_anew(planted, datasets=datasets)))
    is_new = (datasets or 1) > 7
    assert (finding.id, finding.change) == ("worker_restart", {})
    assert finding.recoverable_s == pytest.approx(9 * 0.1, rel=0.1)
    assert (
        "of the 9 passes after the first, each over another dataset: " in finding.title
    ) is is_new
    assert finding.advice.startswith("build it once") is not is_new
    assert finding.advice.startswith("where all passes may have the same samples") is is_new
    assert ("fewer workers, which start sooner" in finding.advice) is is_new
    assert "workers keep their copy of the dataset" in minded(finding)


def test_there_is_no_less_than_one_worker() -> None:
    planted = Planted(workers=1, fetch_s=0.009, compute_s=0.01, passes=10, start_s=0.1)
    finding = only(case_of(built_anew(planted, datasets=10)))
    assert "now each has another dataset" in finding.advice
    assert "fewer workers" not in finding.advice


def test_another_dataset_in_each_pass_where_workers_are_needed() -> None:
    serial = built_anew(Planted(fetch_s=0.03, compute_s=0.01), datasets=2)
    finding = only(case_of(serial))
    assert finding.change == {"num_workers": 3}
    assert "built anew for each pass, of another dataset, and its workers" in minded(finding)
    assert "built once" not in minded(finding)


@pytest.mark.parametrize(("datasets", "is_to_go"), [(10, True), (1, False)])
def test_workers_that_cost_more_than_they_save_go_where_none_can_live_on(
    datasets: int, is_to_go: bool
) -> None:
    plain = {"workers": 2, "fetch_s": 0.008, "running": 1.0, "compute_s": 0.06, "cores": 2}
    planted = built_anew(Planted(**plain, passes=10, start_s=0.8), datasets=datasets)
    finding = only(case_of(planted))
    assert finding.id == "worker_restart"
    assert (finding.change == {"num_workers": 0}) is is_to_go
    assert ("without workers its passes would be shorter" in finding.title) is is_to_go


def with_slow_starts(each_s: float, sampler_s: float, **changes: Any) -> Planted:
    """Ten passes that take so long to begin, some of it for the sampler."""
    planted = Planted(passes=10, compute_s=0.01, **{"fetch_s": 0.0002, **changes})
    loader = planted.loader
    assert loader.first_batch_s is not None
    first_s = loader.first_batch_s.mean + each_s
    first = replace(loader.first_batch_s, mean=first_s, p50=first_s)
    planted.loader = replace(
        loader,
        first_batch_s=first,
        later_starts_s=9 * first.mean,
        sampler_starts_s=9 * sampler_s,
    )
    return planted


def test_what_a_sampler_works_out_for_each_pass() -> None:
    case = case_of(with_slow_starts(0.1, 0.09))
    line = HotLine("first_batch", "data.py:36", "__iter__", ["train.py:50"], 83, 0.9, 0.8)
    finding = only(replace(case, summary=replace(case.summary, hot_lines=[line])))
    assert (finding.id, finding.site) == ("slow_pass_starts", "data.py:36")
    assert "each of 10 passes takes 100 ms longer than a usual batch" in finding.title
    assert finding.recoverable_s == pytest.approx(9 * 0.1, rel=0.05)
    assert finding.advice.startswith("work out what the sampler needs once")
    assert finding.also == ["90 % of it goes to data.py:36 (__iter__); called from train.py:50"]
    assert only(case).site == "train.py:41"  # where no line is known, the loader's


@pytest.mark.parametrize("in_order", [True, False, None])
@pytest.mark.parametrize("is_iterable", [True, False])
def test_what_is_random_in_the_beginning_of_a_pass_is_drawn_anew(
    in_order: bool | None, is_iterable: bool
) -> None:
    planted = with_slow_starts(0.1, 0.0)
    planted.loader = replace(planted.loader, draws_in_order=in_order, is_iterable=is_iterable)
    finding = only(case_of(planted))
    assert finding.id == "slow_pass_starts"
    assert bool(finding.cautions) is not in_order
    assert ("has to be drawn anew in each pass" in minded(finding)) is not in_order


def test_what_a_stream_opens_for_each_pass() -> None:
    planted = with_slow_starts(0.1, 0.0)
    planted.loader = replace(planted.loader, is_iterable=True)
    finding = only(case_of(planted))
    assert finding.id == "slow_pass_starts"
    assert "__iter__ of the dataset" in finding.advice
    # Workers that live on do it in their first fetch of a pass.
    kept = with_slow_starts(0.1, 0.0, workers=2, is_persistent=True, fetch_s=0.004)
    kept.loader = replace(kept.loader, hot_lines=[hot_line("making batches")])
    finding = only(case_of(kept))
    assert (finding.id, finding.site) == ("slow_pass_starts", "data.py:12")


def test_many_workers_that_begin_at_once_on_few_cores_are_no_slow_start() -> None:
    """Eight first batches of 10 ms on two cores are there after 40 ms."""
    planted = Planted(
        workers=8,
        fetch_s=0.01,
        running=1.0,
        compute_s=0.006,
        passes=10,
        cores=2,
        is_persistent=True,
    )
    first = summaries.statistics(0.035, n=10)
    planted.loader = replace(planted.loader, first_batch_s=first, later_starts_s=9 * 0.035)
    assert "slow_pass_starts" not in found(case_of(planted))
    slow = replace(planted.loader, later_starts_s=9 * 0.2)
    planted.loader = replace(slow, first_batch_s=summaries.statistics(0.2, n=10))
    assert "slow_pass_starts" in found(case_of(planted))


@pytest.mark.parametrize(
    ("workers", "facts", "begins"),
    [
        (0, {}, "one iterator"),
        (2, {}, "one iterator"),
        (0, {"changed_between_passes": ["level"]}, "one iterator"),  # it has no copy
        (2, {"changed_between_passes": ["level"]}, "keep the dataset's level, which"),
        (0, {"built": 10, "datasets": 10}, "where all steps may have one dataset"),
        (2, {"built": 10, "datasets": 10}, "where all steps may have one dataset"),
        (2, {"built": 10, "datasets": 1}, "one iterator"),
    ],
)
def test_one_iterator_gives_the_samples_of_one_dataset(
    workers: int, facts: dict[str, Any], begins: str
) -> None:
    told = one_iterator(replace(Planted(workers=workers, passes=10).loader, **facts))
    assert told.startswith(begins)
    assert "one iterator, batches = iter(loader)" in told


def test_an_iterator_for_each_step() -> None:
    planted = with_slow_starts(0.0, 0.0)
    count = planted.loader.iterations
    planted.loader = replace(
        planted.loader, passes=count, wait_s=None, wait_total_s=0.0, later_starts_s=count * 0.005
    )
    finding = only(case_of(planted))
    assert finding.id == "slow_pass_starts"
    assert finding.title.startswith(f"an iterator is made for each of {count} batches")
    assert finding.advice.startswith("one iterator")
    assert minded(finding) == " ".join(cautions_of_one_iterator(planted.loader))


def test_batches_that_an_iterator_for_each_step_makes_are_waited_for() -> None:
    planted = Planted(compute_s=0.01, fetch_s=0.04)
    count = planted.loader.iterations
    first = summaries.statistics(0.045, n=count)
    planted.loader = replace(
        planted.loader,
        passes=count,
        first_batch_s=first,
        wait_s=None,
        wait_total_s=0.0,
        later_starts_s=count * 0.045,
        sampler_starts_s=count * 0.005,
    )
    case = replace(case_of(planted), training_s=count * 0.055)
    serial, each = diagnose(case).findings
    assert (serial.id, each.id) == ("serial_loading", "slow_pass_starts")
    assert "73 % of training" in serial.title
    assert serial.advice.startswith("one iterator, batches = iter(loader)")
    assert "num_workers=" in serial.advice
    assert serial.change == {}
    assert each.advice.startswith("one iterator")
    [told] = cautions_of_one_iterator(planted.loader)
    assert all(one.cautions[0] == told for one in (serial, each))


@pytest.mark.parametrize(
    ("facts", "told"),
    [
        ({"draws_in_order": True}, "each step gets the first batch again now"),
        ({"draws_in_order": False}, "each step gets the first of a new pass now"),
        ({"is_iterable": True}, "each step gets the first of a new pass now"),
        ({"built": 10, "datasets": 10}, ""),  # the advice says so
    ],
)
def test_one_iterator_alters_which_batches_come(facts: dict[str, Any], told: str) -> None:
    loader = replace(Planted(passes=10).loader, **facts)
    assert told in " ".join(cautions_of_one_iterator(loader))
    assert bool(cautions_of_one_iterator(loader)) is bool(told)
    # Workers for passes of many batches need no such iterator.
    assert not loader.is_each_step
    assert cautions_of_needed(loader, {"num_workers": 2}) == []
    each = replace(loader, passes=loader.iterations)
    assert cautions_of_needed(each, {"num_workers": 2}) == cautions_of_one_iterator(each)
    assert cautions_of_needed(each, {"pin_memory": True}) == []
    assert cautions_of_needed(replace(each, num_workers=1), {"num_workers": 2}) == []


def test_the_only_batch_of_each_pass_is_waited_for_too() -> None:
    planted = Planted(compute_s=0.01, fetch_s=0.04, passes=40)
    loader = planted.loader
    whole = replace(
        loader,
        passes=loader.iterations,
        ended=loader.iterations,
        first_batch_s=summaries.statistics(0.04, n=loader.iterations),
        wait_s=None,
        wait_total_s=0.0,
    )
    assert LoaderCase(whole, None, None, None, None, 0.05 * loader.iterations).wait_share == (
        pytest.approx(0.8)
    )
    workers = replace(whole, num_workers=2)
    assert LoaderCase(workers, None, None, None, None, 1.0).wait_share == 0.0


@pytest.mark.parametrize("sampler_s", [0.0, 0.02])
def test_workers_for_each_step_want_one_iterator(sampler_s: float) -> None:
    planted = with_slow_starts(0.0, 0.0, workers=2, fetch_s=0.004)
    count = planted.loader.iterations
    planted.loader = replace(
        planted.loader,
        passes=count,
        init_s=summaries.statistics(0.05, n=count),
        first_batch_s=summaries.statistics(0.01, n=count),
        wait_s=None,
        wait_total_s=0.0,
        end_s=count * 0.02,
        later_starts_s=(count - 1) * 0.06,
        sampler_starts_s=(count - 1) * sampler_s,
    )
    case = case_of(planted)
    finding = only(replace(case, training_s=case.training_s + count * 0.08))
    assert (finding.id, finding.change) == ("worker_restart", {})
    assert finding.title.startswith(f"an iterator is made for each of {count} batches")
    assert "80.0 ms each time" in finding.title
    assert finding.advice.startswith("one iterator")
    assert "up to 4 batches" in finding.also[0]
    assert minded(finding) == " ".join(cautions_of_one_iterator(planted.loader))
    # A batch of one iterator is there 2 ms later at most.
    assert finding.recoverable_s == pytest.approx((count - 1) * 0.078)
    # Passes of one batch, each to its end.
    planted.loader = replace(planted.loader, ended=count)
    told = diagnose(replace(case_of(planted), training_s=case.training_s + count * 0.08)).findings
    assert "one iterator" not in " ".join(one.advice for one in told)


def restart_of(case: Case) -> Finding:
    return next(one for one in diagnose(case).findings if one.id == "worker_restart")


def begun_late(first_s: float, passes: int = 3, compute_s: float = 0.25) -> Case:
    """A run of some passes, whose first one takes so long to begin, and the others 0.3 s."""
    planted = Planted(workers=2, fetch_s=0.004, compute_s=compute_s, passes=passes, start_s=0.3)
    loader = planted.loader
    assert loader.first_batch_s is not None
    assert loader.init_s is not None
    each_s = loader.first_batch_s.mean
    mean_s = each_s + (first_s - each_s) / passes
    planted.loader = replace(
        loader,
        first_batch_s=replace(loader.first_batch_s, mean=mean_s, max=first_s),
        first_start_s=first_s + loader.init_s.mean,
    )
    return case_of(planted)


def test_a_first_start_that_takes_far_longer_is_not_said_to_come_again() -> None:
    assert found(begun_late(8.0)) == ["slow_first_batch"]
    # Where the others are worth it, they are told as long as they are.
    told, plain = (restart_of(begun_late(first_s, compute_s=0.04)) for first_s in (8.0, 0.3))
    assert "of the 2 passes after the first: each time 30" in told.title
    assert told.recoverable_s == pytest.approx(0.6, rel=0.05)
    assert told.recoverable_s == pytest.approx(plain.recoverable_s)
    assert told.evidence["later_starts_s"] == pytest.approx(0.6, rel=0.05)
    assert told.evidence["starts_s"] == pytest.approx(8.6, rel=0.05)


def test_of_two_passes_the_second_is_the_one_that_starts_workers_again() -> None:
    restart = restart_of(begun_late(0.3, passes=2, compute_s=0.04))
    assert restart.title.startswith("its 2 workers are started again for the second pass: 30")


def test_an_iterator_for_each_step_whose_first_start_takes_far_longer() -> None:
    case = begun_late(8.0)
    fed = case.feeding[0]
    loader = replace(fed.loader, passes=200, init_s=summaries.statistics(0.05, n=200))
    first = summaries.statistics(0.01 + (8.0 - 0.01) / 200, n=200)
    each = replace(fed, loader=replace(loader, first_batch_s=first, first_start_s=8.05))
    told = restart_of(replace(case, feeding=[each], training_s=60.0))
    assert "60.0 ms each time, 20 % of training" in told.title
    assert told.recoverable_s == pytest.approx(199 * (0.06 - 0.002), rel=0.001)


def test_workers_that_are_started_again_take_what_the_sampler_does_not() -> None:
    plain = {"workers": 2, "fetch_s": 0.004, "start_s": 0.1}
    drawn = diagnose(case_of(with_slow_starts(0.1, 0.1, **plain))).findings
    assert sorted(one.id for one in drawn) == ["slow_pass_starts", "worker_restart"]
    restart = next(one for one in drawn if one.id == "worker_restart")
    assert "of the 9 passes after the first: each time 10" in restart.title  # and not 200 ms
    assert [one.recoverable_s for one in drawn] == [
        pytest.approx(0.9, rel=0.1),
        pytest.approx(0.9, rel=0.15),
    ]
    assert found(case_of(with_slow_starts(0.0, 0.0, **plain))) == ["worker_restart"]


@pytest.mark.parametrize("fetch_s", [0.0002, 0.03])
def test_passes_that_begin_as_they_go_on_are_no_finding(fetch_s: float) -> None:
    planted = with_slow_starts(0.0, 0.0, fetch_s=fetch_s)
    assert "slow_pass_starts" not in found(case_of(planted))
    # Opened once, by the first of them.
    planted.loader = replace(
        planted.loader, first_batch_s=summaries.statistics(0.2, n=10), later_starts_s=9 * fetch_s
    )
    assert "slow_pass_starts" not in found(case_of(planted))


def test_what_is_collected_at_the_line_of_another_finding_comes_of_it() -> None:
    case = case_of(with_slow_starts(0.1, 0.09), parts={"gc": 0.5})
    line = HotLine("first_batch", "data.py:36", "__iter__", ["train.py:50"], 83, 0.9, 0.8)
    there = replace(line, part="gc")
    joined = only(replace(case, summary=replace(case.summary, hot_lines=[line, there])))
    assert (joined.id, joined.site) == ("slow_pass_starts", "data.py:36")
    assert joined.recoverable_s == pytest.approx(0.9 + 0.5, rel=0.05)
    assert joined.also[-1].startswith("at the same line, and counted with it: Python's garbage")
    elsewhere = replace(there, site="model.py:7")
    apart = diagnose(
        replace(case, summary=replace(case.summary, hot_lines=[line, elsewhere]))
    ).findings
    assert sorted(one.id for one in apart) == ["gc_pauses", "slow_pass_starts"]


def test_a_late_first_batch_is_named_once() -> None:
    planted = Planted(workers=2, fetch_s=0.004, compute_s=0.1, passes=1, start_s=8.0)
    assert found(case_of(planted)) == ["slow_first_batch"]
    soon = Planted(workers=2, fetch_s=0.004, compute_s=0.1, passes=1, start_s=1.0)
    assert found(case_of(soon)) == []


@pytest.mark.parametrize(
    ("method", "began_s", "slowest_s", "advice"),
    [
        ("spawn", 7.9, 0.01, "fewer imports"),
        ("forkserver", 7.9, 0.01, "fewer imports"),
        ("fork", 7.9, 0.01, "a smaller dataset object"),
        ("spawn", 0.4, 0.01, "a smaller dataset object"),
        ("spawn", 0.4, 7.5, "less to open or read"),
        ("spawn", None, 0.01, "a smaller dataset object"),
    ],
)
def test_what_a_late_first_batch_waits_for(
    method: str, began_s: float | None, slowest_s: float, advice: str
) -> None:
    planted = Planted(workers=2, fetch_s=0.004, compute_s=0.1, passes=1, start_s=8.0)
    fetch = planted.loader.fetch
    assert fetch is not None
    assert fetch.wall_s is not None
    rows = [{**row, "first_fetch_s": began_s} for row in fetch.per_worker]
    fetch = replace(fetch, per_worker=rows, wall_s=replace(fetch.wall_s, max=slowest_s))
    planted.loader = replace(planted.loader, start_method=method, fetch=fetch)
    finding = only(case_of(planted))
    assert finding.advice.startswith(advice)
    assert finding.evidence["first_fetch_s"] == began_s


@pytest.mark.parametrize(
    ("facts", "is_told"),
    [
        ({"is_iterable": True, "first_given_back_s": 7.5}, False),
        ({"is_iterable": True, "first_given_back_s": 0.0}, True),
        ({"is_iterable": False, "first_given_back_s": 7.5}, True),  # nothing is read ahead
        ({"is_iterable": True}, True),  # an older run
    ],
)
def test_a_buffer_that_is_filled_first_makes_no_late_first_batch(
    facts: dict[str, Any], is_told: bool
) -> None:
    planted = Planted(fetch_s=0.004, compute_s=0.1, passes=1)
    first = summaries.statistics(8.0, n=1, max=8.0)
    planted.loader = replace(planted.loader, first_batch_s=first, **facts)
    assert ("slow_first_batch" in found(case_of(planted))) is is_told


SAVED = Checkpoints(saves=4, save_s=0.8, saved_bytes=3 << 20, site="train.py:70")


@pytest.mark.parametrize(
    ("calls", "title"),
    [
        (
            SAVED,
            "torch.save, 4 times, takes 800 ms, 29 % of training: a save of 3.00 MiB takes 200 ms",
        ),
        (
            replace(SAVED, saves=1, loads=2, load_s=0.4, saved_bytes=None),
            "torch.save, once, and torch.load, 2 times, take 800 ms, 29 % of training: a "
            "save takes 800 ms",
        ),
        (Checkpoints(loads=2, load_s=0.8), "torch.load, 2 times, takes 800 ms, 29 % of training"),
        (
            replace(SAVED, writers=(Writer.SAFETENSORS, Writer.TORCH)),
            "safetensors' serialize_file and torch.save, 4 times in all, take 800 ms, 29 % of "
            "training: a save of 3.00 MiB takes 200 ms",
        ),
        (
            replace(SAVED, writers=(Writer.TRANSFORMERS,)),
            "Trainer._save_checkpoint, 4 times, takes 800 ms, 29 % of training: "
            "a save of 3.00 MiB takes 200 ms",
        ),
    ],
)
def test_checkpoints_are_told_by_what_was_called(calls: Checkpoints, title: str) -> None:
    case = case_of(steady_steps=100, parts={"checkpoint": 0.8})
    finding = only(replace(case, checkpoints=calls))
    assert (finding.title, finding.site) == (title, calls.site)


@pytest.mark.parametrize(
    ("writer", "argument"),
    [
        (Writer.TRANSFORMERS, "save_steps="),
        (Writer.LIGHTNING, "every_n_train_steps="),
        (Writer.ACCELERATE, None),
        (Writer.TORCH, None),
    ],
)
def test_where_a_trainer_is_told_how_often_it_saves(writer: Writer, argument: str | None) -> None:
    case = case_of(steady_steps=100, parts={"checkpoint": 0.8})
    told = only(replace(case, checkpoints=replace(SAVED, writers=(writer,)))).also
    assert [one.split()[5] for one in told] == ([argument] if argument else [])


@pytest.mark.parametrize(
    ("key", "rule", "spent_s", "little_s"),
    [
        ("checkpoint", "slow_checkpoints", 0.5, 0.05),
        ("other", "python_in_loop", 0.5, 0.15),
        ("gc", "gc_pauses", 0.5, 0.05),
    ],
)
def test_what_training_spends_elsewhere(
    key: str, rule: str, spent_s: float, little_s: float
) -> None:
    healthy = Planted(workers=2, fetch_s=0.002, compute_s=0.01)
    case = case_of(healthy, parts={key: spent_s})
    finding = only(replace(case, summary=replace(case.summary, hot_lines=[hot_line("other")])))
    assert finding.id == rule
    assert finding.is_at_most
    assert finding.predicted_speedup is not None
    assert finding.predicted_speedup[0] == 1.0
    # A fifth goes; what remains may get faster by a quarter of that share.
    assert finding.predicted_speedup[1] == pytest.approx(1.25 / 0.95, rel=0.05)
    assert found(case_of(healthy, parts={key: little_s})) == []


@pytest.mark.parametrize(("backward_s", "is_long"), [(2.0, False), (4.0, True)])
def test_a_loss_in_python_has_its_share_of_a_long_backward(
    backward_s: float, is_long: bool
) -> None:
    healthy = Planted(workers=2, fetch_s=0.002, compute_s=1.0 / STEPS)  # the forward's
    case = case_of(healthy, parts={"other": 2.0, "backward": backward_s})
    ledger = replace(case.summary.ledger, other_by_place={"between forward and backward": 2.0})
    lines = [hot_line("other")]
    summary = replace(case.summary, ledger=ledger, hot_lines=lines, loss_in_loop_s=0.0)
    finding = only(replace(case, summary=summary))
    assert finding.id == "python_in_loop"
    told = [one for one in finding.also if "as long as forward" in one]
    assert bool(told) is is_long
    assert finding.evidence["left_out_as_our_own_s"] >= 0


@pytest.mark.parametrize("loss_s", [0.0, 0.1])
def test_what_may_be_a_loss_of_torch_functions_is_no_python_where_too_few_looks_tell(
    loss_s: float,
) -> None:
    healthy = Planted(workers=2, fetch_s=0.002, compute_s=1.0 / STEPS)
    case = case_of(healthy, parts={"other": 2.0, "backward": 2.0, "loss": loss_s})
    ledger = replace(case.summary.ledger, other_by_place={"between forward and backward": 1.9})
    lines = [replace(hot_line("other"), is_likely=True)]
    summary = replace(case.summary, ledger=ledger, hot_lines=lines)
    told = found(replace(case, summary=summary))
    # Where a loss was seen, it is no other.
    assert bool(told) is (loss_s > 0)


def test_what_sleep_waits_for_may_give_no_more_to_more_workers() -> None:
    """A lock or a rate limit looks like a server that answers everybody at once."""
    asleep = only(case_of(Planted(workers=1, fetch_s=0.06, running=0.3, compute_s=0.01)))
    assert (asleep.id, asleep.is_at_most) == ("too_few_workers", True)
    assert asleep.predicted_speedup is not None
    assert asleep.predicted_speedup[0] == 1.0
    assert any("making a batch is 70 % sleep" in told for told in asleep.cautions)
    busy = only(case_of(Planted(workers=1, fetch_s=0.06, running=0.7, compute_s=0.01)))
    assert (busy.id, busy.is_at_most) == ("too_few_workers", False)


@pytest.mark.parametrize("is_in_steps", [True, False])
def test_python_that_comes_now_and_then_is_no_matter_of_steps(is_in_steps: bool) -> None:
    """As behind an evaluation: the loader is not played again without it."""
    case = case_of(Planted(workers=2, fetch_s=0.002, compute_s=0.01), parts={"other": 1.0})
    training = case.summary.training
    if not is_in_steps:
        training = replace(training, per_step_s={"other": 0.1 / training.steps})
    summary = replace(case.summary, training=training, hot_lines=[hot_line("other")])
    finding = only(replace(case, summary=summary))
    assert is_in_steps or not finding.of_steps
    where = "between the parts of a step" if is_in_steps else "between steps, now and then,"
    assert finding.title.startswith(f"Python code {where} takes 9")


@pytest.mark.parametrize(
    ("once_s", "told"),
    [
        (None, "now and then, takes 1.98 s"),
        (0.2, "now and then, takes 1.78 s"),
        # What is left may lie in usual steps.
        (1.2, "between the parts of a step takes 776 ms"),
        (1.9, None),
        (3.0, None),
    ],
)
def test_python_that_comes_but_once_is_taken_off(once_s: float | None, told: str | None) -> None:
    """As code that is compiled by its first call, which no change of the loop saves."""
    case = case_of(Planted(workers=2, fetch_s=0.002, compute_s=0.01), parts={"other": 2.0})
    training = replace(
        case.summary.training, per_step_s={"other": 0.6 / case.summary.training.steps}
    )
    line = replace(hot_line("other"), line_share=0.9)
    summary = replace(case.summary, training=training, hot_lines=[line], once_in_loop_s=once_s)
    case = replace(case, summary=summary)
    if told is None:
        assert found(case) == []
        return
    finding = only(case)
    assert finding.id == "python_in_loop"
    assert told in finding.title
    assert finding.evidence["left_out_as_once_s"] == (once_s or 0.0)
    assert finding.recoverable_s == pytest.approx(finding.evidence["python_s"])


@pytest.mark.parametrize(("once_s", "is_sure"), [(0.0, True), (0.5, True), (1.1, False)])
def test_where_most_python_is_may_be_where_some_came_once(once_s: float, is_sure: bool) -> None:
    case = case_of(Planted(workers=2, fetch_s=0.002, compute_s=0.01), parts={"other": 2.0})
    places = {"after the update": 1.5, "between backward and update": 0.5}
    ledger = replace(case.summary.ledger, other_by_place=places)
    summary = replace(
        case.summary, ledger=ledger, hot_lines=[hot_line("other")], once_in_loop_s=once_s
    )
    finding = only(replace(case, summary=summary))
    assert ("most of it after the update" in finding.title) is is_sure
    assert ("most of it" in finding.title) is is_sure


def test_what_grows_makes_the_halves_of_a_run_differ_and_is_no_noise() -> None:
    healthy = Planted(workers=2, fetch_s=0.002, compute_s=0.01)
    case = case_of(healthy, parts={"other": 0.5}, halves={"other": (0.1, 1.9)})
    summary = replace(case.summary, hot_lines=[hot_line("other")])
    noisy = replace(case, summary=summary, noise=0.3)
    assert "python_in_loop" not in found(noisy)
    [passed] = [x for x in diagnose(noisy).passed_over if x.finding.id == "python_in_loop"]
    assert (passed.why, passed.least_gain) == ("noise", 0.3)
    grows = np.linspace(0, 10e6, len(case.steps)).astype(np.int64)
    wall = grows + int(10e6)
    steps = replace(
        case.steps,
        wall_ns=wall,
        per_step=case.steps.per_step | {"other": grows},
        candidates=np.ones(len(wall), dtype=bool),
    )
    finding = next(one for one in diagnose(replace(noisy, steps=steps)).findings)
    assert finding.id == "python_in_loop"
    assert any("it grows as training goes on" in told for told in finding.also)


@pytest.mark.parametrize(
    ("at", "where"),
    [
        (slice(50, None, 50), "between epochs (333 ms each time) takes 976 ms"),
        (slice(25, None, 50), "between steps, now and then, takes 976 ms"),
        (slice(50, None, 25), "between epochs (167 ms each time) and between the parts of a step"),
    ],
)
def test_python_between_epochs_is_told_as_such(at: slice, where: str) -> None:
    case = case_of(Planted(workers=2, fetch_s=0.002, compute_s=0.01), parts={"other": 1.0})
    spent = np.zeros(len(case.steps), dtype=np.int64)
    spent[at] = int(1e9) // len(range(*at.indices(len(spent))))
    steps = replace(
        case.steps,
        per_step=case.steps.per_step | {"other": spent},
        epoch_of=np.arange(len(spent)) // 50,
    )
    training = replace(case.summary.training, per_step_s={"other": 0.0})
    line = replace(hot_line("other"), with_calls=True, share=0.9)
    summary = replace(case.summary, training=training, hot_lines=[line])
    finding = only(replace(case, summary=summary, steps=steps))
    assert where in finding.title
    told = "this line, in decode(), takes 90 % of it with what it calls: do it less often"
    assert (finding.advice or "").startswith(told)


@pytest.mark.parametrize(
    ("first_share", "once_s", "where"),
    [
        (0.9, 0.0, "between the parts of the first 80 steps takes 976 ms"),
        (0.5, 0.0, "between steps, now and then, takes 976 ms"),
        # What is left of them is no more than elsewhere.
        (0.8, 0.6, "between steps, now and then, takes 376 ms"),
    ],
)
def test_python_of_a_first_phase_is_told_as_such(
    first_share: float, once_s: float, where: str
) -> None:
    case = case_of(Planted(workers=2, fetch_s=0.002, compute_s=0.01), parts={"other": 1.0})
    spent = np.zeros(len(case.steps), dtype=np.int64)
    spent[:80] = int(first_share * 1e9) // 80
    spent[100:190:9] = int((1 - first_share) * 1e9) // 10
    steps = replace(
        case.steps,
        per_step=case.steps.per_step | {"other": spent},
        steady=replace(case.steps.steady, warmup=80),
    )
    training = replace(case.summary.training, per_step_s={"other": 0.0})
    summary = replace(
        case.summary, training=training, hot_lines=[hot_line("other")], once_in_loop_s=once_s
    )
    finding = only(replace(case, summary=summary, steps=steps))
    assert where in finding.title


def test_python_in_the_loop_is_named_by_line() -> None:
    line = hot_line("other")
    healthy = Planted(workers=2, fetch_s=0.002, compute_s=0.01)
    case = case_of(healthy, parts={"other": 1.0})
    case = replace(case, summary=replace(case.summary, hot_lines=[line]))
    finding = only(case)
    assert finding.site == "data.py:12"
    assert finding.also == ["called from train.py:50"]


def with_a_loss(loss_s: float, *lines: HotLine) -> Case:
    """A run with 2 s of code between the parts of a step, so much of it a loss by torch."""
    case = case_of(Planted(workers=2, fetch_s=0.002, compute_s=0.01), parts={"other": 2.0})
    places = {"between forward and backward": loss_s + 0.1, "after the update": 1.9 - loss_s}
    ledger = replace(case.summary.ledger, other_by_place=places)
    summary = replace(case.summary, ledger=ledger, hot_lines=list(lines), loss_in_loop_s=loss_s)
    return replace(case, summary=summary)


def test_a_loss_of_torchs_functions_is_no_python_code() -> None:
    loss = replace(hot_line("other"), torch_share=0.95, loss_share=0.95, seconds=1.9)
    assert found(with_a_loss(1.9, loss)) == []
    # What the line is in older runs, and one that holds the interpreter.
    assert found(with_a_loss(0.0, hot_line("other"))) == ["python_in_loop"]
    held = replace(hot_line("other"), torch_share=0.1, loss_share=0.1)
    finding = only(with_a_loss(0.0, held))
    assert finding.title.startswith("Python code between")
    assert "do it less often" in finding.advice


def test_the_line_that_grows_is_named_however_much_it_had_of_the_first_step() -> None:
    loss = replace(hot_line("other"), torch_share=0.95, loss_share=0.95, seconds=1.9)
    case = with_a_loss(1.9, loss)
    # Twice as much in the end: more than half of it is there from the start.
    mean_ns = 2e9 / case.summary.training.steps
    grows = np.linspace(0.6 * mean_ns, 1.4 * mean_ns, len(case.steps)).astype(np.int64)
    steps = replace(
        case.steps,
        wall_ns=grows + int(10e6),
        per_step=case.steps.per_step | {"other": grows, "backward": np.full_like(grows, 1e6)},
        candidates=np.ones(len(grows), dtype=bool),
    )
    finding = only(replace(case, steps=steps))
    assert finding.site == loss.site
    assert finding.evidence["left_out_as_loss_s"] > 0.5 * 1.9


@pytest.mark.parametrize("model_grows", [False, True])
def test_what_grows_while_the_model_does_not_is_no_loss(model_grows: bool) -> None:
    loss = replace(hot_line("other"), torch_share=0.95, loss_share=0.95, seconds=1.9)
    case = with_a_loss(1.9, loss)
    # From nothing to 20 ms a step.
    grows = np.linspace(0, 20e6, len(case.steps)).astype(np.int64)
    steps = replace(
        case.steps,
        wall_ns=grows + int(10e6),
        per_step=case.steps.per_step
        | {"other": grows, "backward": grows if model_grows else np.full_like(grows, 1e6)},
        candidates=np.ones(len(grows), dtype=bool),
    )
    told = found(replace(case, steps=steps))
    assert ("python_in_loop" in told) is not model_grows
    if not model_grows:
        finding = only(replace(case, steps=steps))
        assert finding.site == loss.site
        assert finding.evidence["left_out_as_loss_s"] == pytest.approx(0.0, abs=0.05)
        assert any("it grows as training goes on" in one for one in finding.also)
        assert "once an epoch" in finding.advice


@pytest.mark.parametrize(
    ("model_times", "is_told"),
    [
        pytest.param(8.0, False, id="as much: episodes that get longer"),
        pytest.param(1.7, True, id="by far less"),
        pytest.param(1.0, True, id="not at all"),
    ],
)
def test_what_grows_as_the_model_does_goes_over_no_more_than_that(
    model_times: float, is_told: bool
) -> None:
    case = case_of(Planted(workers=2, fetch_s=0.002, compute_s=0.01), parts={"other": 2.0})
    other, backward = (np.linspace(1, times, len(case.steps)) * 2e6 for times in (8.0, model_times))
    steps = replace(
        case.steps,
        wall_ns=(other + backward).astype(np.int64) + int(10e6),
        per_step=case.steps.per_step
        | {"other": other.astype(np.int64), "backward": backward.astype(np.int64)},
        candidates=np.ones(len(other), dtype=bool),
    )
    line = replace(hot_line("other"), torch_share=0.95, loss_share=0.0)
    summary = replace(case.summary, hot_lines=[line])
    # Noise of either half is no matter: what grows is none.
    finding = only(replace(case, summary=summary, steps=steps, noise=0.3))
    assert finding.id == "python_in_loop"
    assert any("all that has been collected" in one for one in finding.also) is is_told
    assert ("all batches so far" in (finding.advice or "")) is is_told


def test_python_beside_a_loss_has_its_own_line_and_share() -> None:
    loss = replace(hot_line("other", 0.6), torch_share=0.95, loss_share=0.95, seconds=1.2)
    metric = HotLine(
        "other", "metrics.py:7", "rank", ["train.py:52"], 60, 0.36, 0.72, line_share=0.36
    )
    finding = only(with_a_loss(1.2, loss, metric))
    assert (finding.id, finding.site) == ("python_in_loop", "metrics.py:7")
    assert "takes 776 ms" in finding.title  # some of it is trainprof's own
    assert "most of it after the update" in finding.title
    assert "this line, in rank(), takes 93 % of it: do it less often" in finding.advice
    assert "doing it less often changes what is learned: make it cheaper" in minded(finding)
    assert finding.evidence["left_out_as_loss_s"] == 1.2


def test_a_loss_in_a_closure_is_taken_off_what_lies_there() -> None:
    closure, after = "in the closure that optimizer.step calls", "after the update"
    case = with_a_loss(1.2, replace(hot_line("other"), torch_share=0.1, loss_share=0.1))
    ledger = replace(case.summary.ledger, other_by_place={closure: 1.3, after: 0.7})
    summary = replace(case.summary, ledger=ledger, loss_by_place={closure: 1.2})
    finding = only(replace(case, summary=summary))
    assert f"most of it {after}" in finding.title
    assert finding.evidence["by_place_s"] == {closure: pytest.approx(0.1), after: 0.7}


def test_an_average_of_weights_is_said_to_be_torchs() -> None:
    average = replace(hot_line("other"), torch_share=0.9, loss_share=0.0)
    finding = only(with_a_loss(0.0, average))
    assert finding.id == "python_in_loop"
    assert finding.title.startswith("what the loop computes by torch's functions")
    assert "Python code" not in finding.title
    assert "do it less often" not in finding.advice
    assert finding.cautions == []


@pytest.mark.parametrize(
    ("of_line", "is_at_least", "told"),
    [
        (None, False, "this line, in decode(), takes 90 % of it: "),  # an older run
        (0.85, False, "this line, in decode(), takes 85 % of it: "),
        (0.3, False, "decode() takes 90 % of it, this line 30 %: "),
        (0.3, True, "decode() takes at least 90 % of it, this line at least 30 %: "),
    ],
)
def test_a_line_is_not_said_to_take_what_its_whole_function_takes(
    of_line: float | None, is_at_least: bool, told: str
) -> None:
    line = replace(hot_line("other"), line_share=of_line, is_at_least=is_at_least)
    case = case_of(Planted(workers=2, fetch_s=0.002), parts={"other": 2.0})
    finding = only(replace(case, summary=replace(case.summary, hot_lines=[line])))
    assert told in finding.advice
    alone = [one for one in finding.also if one.startswith("without that line alone")]
    assert bool(alone) is (of_line is not None and not is_at_least)
    if of_line == 0.3 and alone:
        # 100 looks at 90 % of it: 30 % may be 39 %; what remains may get faster by a quarter.
        kept = 1 - 0.387 * 2.0 / case.training_s
        most = 1 / kept / (1 - 0.25 * (1 - kept))
        assert f"up to about {most:.2f} x as fast" in alone[0]
    making = replace(line, part="making batches")
    planted = Planted(fetch_s=0.03, compute_s=0.01)
    planted.loader = replace(planted.loader, hot_lines=[making])
    sentence = only(case_of(planted)).also[-1]
    assert ("with the rest of that function" in sentence) is (of_line == 0.3)
    # Of a batch of 40 ms, 30 in the making.
    times = {0.3: "1.3", 0.85: "2.8", 0.9: "3.1"}[of_line or line.share]
    or_more = ", or more" if is_at_least else ""
    assert sentence.endswith(
        f": without that line, steps would be about {times} x as fast{or_more}"
    )


def test_python_that_is_only_known_to_end_somewhere_has_no_line() -> None:
    line = replace(hot_line("other"), is_likely=True, is_end=True)
    case = case_of(Planted(workers=2, fetch_s=0.002), parts={"other": 2.0})
    finding = only(replace(case, summary=replace(case.summary, hot_lines=[line])))
    assert (finding.id, finding.site) == ("python_in_loop", None)
    assert finding.also == [
        "most of it ends at data.py:12 (decode): what takes long stands there or before it"
    ]


def test_statements_of_the_loop_itself_count_where_one_of_them_is_worth_a_look() -> None:
    case = case_of(Planted(workers=2, fetch_s=0.002, compute_s=0.02), parts={"other": 0.7})
    backward = replace(hot_line("backward"), site="data.py:30")

    def ids(line: HotLine, *others: HotLine) -> list[str]:
        return found(replace(case, summary=replace(case.summary, hot_lines=[line, *others])))

    scattered = replace(hot_line("other"), line_share=0.3)
    assert ids(scattered, backward) == []
    assert ids(replace(scattered, line_share=0.8), backward) == ["python_in_loop"]
    assert ids(scattered, replace(backward, function="train")) == ["python_in_loop"]
    assert ids(scattered) == ["python_in_loop"]


@pytest.mark.parametrize(
    ("line", "is_told"),
    [
        ({"line_share": 0.9}, True),
        ({"line_share": 0.5}, False),
        ({"line_share": None}, False),
        ({"line_share": 0.9, "is_likely": True}, False),
        ({"line_share": 0.9, "is_end": True}, False),
    ],
)
def test_a_line_that_takes_a_twentieth_is_told_where_it_is_certain(
    line: dict[str, Any], is_told: bool
) -> None:
    case = case_of(Planted(workers=2, fetch_s=0.002, compute_s=0.02), parts={"other": 0.35})
    assert case.share("other") == pytest.approx(0.08, abs=0.005)
    summary = replace(case.summary, hot_lines=[replace(hot_line("other"), **line)])
    assert ("python_in_loop" in found(replace(case, summary=summary))) is is_told


def test_where_no_line_is_known_another_thread_at_work_is_named() -> None:
    case = case_of(Planted(workers=2, fetch_s=0.002), parts={"other": 2.0})

    def told(at_work: float, lines: list[HotLine]) -> str:
        beside = CompetingThread("feed.py:10", "produce", at_work, 0.1, 0.02, 100)
        summary = replace(case.summary, competing=beside, hot_lines=lines)
        return " ".join(only(replace(case, summary=summary)).also)

    ends = replace(hot_line("other"), is_likely=True, is_end=True)
    for lines in ([], [ends]):
        assert "at feed.py:10 (produce), was at work for 50 % of training" in told(0.5, lines)
    assert "feed.py" not in told(0.1, [])
    assert "feed.py" not in told(0.5, [hot_line("other")])


def test_where_a_wait_ends_beside_a_thread_at_work_the_loop_waits_for_that_thread() -> None:
    case = case_of(Planted(workers=2, fetch_s=0.002), parts={"other": 2.0})
    ends = replace(hot_line("other"), is_likely=True, is_end=True, waits_share=0.9)
    beside = CompetingThread("feed.py:10", "produce", 0.7, 0.1, 0.02, 100, asleep_s=1.5)

    def of(line: HotLine, told: CompetingThread) -> Finding:
        summary = replace(case.summary, competing=told, hot_lines=[line])
        return only(replace(case, summary=summary))

    finding = of(ends, beside)
    assert (finding.id, finding.site) == ("python_in_loop", "data.py:12")
    assert "the loop waits for another thread, at feed.py:10:" in finding.title
    assert finding.advice.startswith("data.py:12 (decode) waits for it: let other processes")
    assert finding.cautions == []
    # It computed before it came there, the line may be where that ends; or the other one slept.
    for line, told in (
        (replace(ends, waits_share=0.2), beside),
        (ends, replace(beside, asleep_s=0.4)),
        (ends, replace(beside, asleep_s=None)),
        (ends, replace(beside, at_work_share=0.1)),
    ):
        assert of(line, told).site is None


def test_less_python_gains_nothing_where_workers_do_not_keep_up() -> None:
    # The step is as long as the workers need for a batch; its Python would only become waiting.
    busy = Planted(workers=2, fetch_s=0.04, running=1.0, compute_s=0.019, cores=3)
    assert "python_in_loop" not in found(case_of(busy, parts={"other": 1.0}))


@pytest.mark.parametrize("planted", [(), (Planted(workers=2, fetch_s=0.002, compute_s=0.01),)])
def test_evaluation_without_a_loader_is_named_by_who_calls_for_it(
    planted: tuple[Planted, ...],
) -> None:
    computing = HotLine("forward", "model.py:8", "forward", ["train.py:30", "train.py:60"], 9, 1, 1)
    called = ["data.py:30", "train.py:41", "train.py:60"]
    evaluating = replace(hot_line("evaluation"), called_from=called)
    case = case_of(*planted, parts={"evaluation": 4.0, "forward": 2.0})
    summary = replace(case.summary, hot_lines=[computing, evaluating])
    finding = only(replace(case, summary=summary))
    assert (finding.id, finding.site) == ("slow_validation", "train.py:41")
    assert "evaluation takes 4.00 s" in finding.title
    assert finding.also == ["most of it goes to data.py:12 (decode): 90 % of it"]
    # A policy's forwards look the same, also where a loader goes over what it collected.
    assert "a policy that collects experience" in minded(finding)
    nameless = only(replace(case, summary=replace(summary, hot_lines=[computing])))
    assert (nameless.id, nameless.site, nameless.also) == ("slow_validation", None, [])
    # Without a look at the other parts, train.py:60 may call for all of them.
    alone = only(replace(case, summary=replace(summary, hot_lines=[evaluating])))
    assert (alone.site, alone.also) == ("data.py:12", [])
    assert found(case_of(*planted, parts={"evaluation": 0.1, "forward": 2.0})) == []


def test_evaluation_wants_no_workers_that_take_longer_to_start_than_they_save() -> None:
    """Built anew for each of 20 passes of ten batches, by spawn."""
    training = Planted(workers=2, fetch_s=0.002, compute_s=0.01)
    evaluating = Planted(fetch_s=0.02, compute_s=0.002, passes=20, role="evaluation")
    spawned = replace(evaluating.inputs, boot_s=Interval(1.0, 2.5, 6.0))
    for inputs, is_wanted in ((evaluating.inputs, True), (spawned, False)):
        evaluating.loader = replace(evaluating.loader, id=1, site="train.py:44", built=20)
        evaluating.inputs = inputs
        spent_s = evaluating.loader.wait_total_s + 0.002 * STEPS
        finding = only(case_of(training, evaluating, parts={"evaluation": spent_s}))
        assert finding.id == "slow_validation"
        assert ("num_workers" in finding.change) is is_wanted


def test_waits_that_most_of_the_run_does_not_have_are_not_saved_in_all_of_it() -> None:
    planted = Planted(fetch_s=0.04, compute_s=0.01)
    whole = only(case_of(planted))
    planted.loader = replace(planted.loader, wait_total_s=planted.loader.wait_total_s / 4)
    part = only(case_of(planted))
    assert part.id == whole.id == "serial_loading"
    assert part.recoverable_s < whole.recoverable_s / 3


def test_evaluation_wants_workers_for_its_loader() -> None:
    training = Planted(workers=2, fetch_s=0.002, compute_s=0.01)
    evaluating = Planted(fetch_s=0.02, compute_s=0.002, role="evaluation")
    evaluating.loader = replace(evaluating.loader, id=1, site="train.py:44")
    spent_s = evaluating.loader.wait_total_s + 0.002 * STEPS
    finding = only(case_of(training, evaluating, parts={"evaluation": spent_s}))
    assert (finding.id, finding.site) == ("slow_validation", "train.py:44")
    assert finding.change["num_workers"] >= 2
    quick = Planted(fetch_s=0.0001, compute_s=0.02, role="evaluation")
    quick.loader = replace(quick.loader, id=1, site="train.py:44")
    finding = only(case_of(training, quick, parts={"evaluation": 4.0}))
    assert finding.change == {}
    assert "less often" in finding.advice
    assert finding.site == "train.py:44"
    assert "a policy" not in minded(finding)
    again = Planted(workers=2, fetch_s=0.002, compute_s=0.01)
    again.loader = replace(again.loader, evaluation_s=3.0, called_at="train.py:70")
    short = Planted(fetch_s=0.0001, compute_s=0.005, role="evaluation")
    short.loader = replace(short.loader, id=1, site="train.py:44")
    finding = only(case_of(again, short, parts={"evaluation": 4.0}))
    assert (finding.site, finding.change) == ("train.py:70", {})
    assert "75 % of it over the loader that trains, train.py:41" in finding.title
    quick.loader = replace(quick.loader, called_at="train.py:60")
    finding = only(case_of(training, quick, parts={"evaluation": 4.0}))
    assert finding.site == "train.py:60"
    assert "over the loader of train.py:44" in finding.title


@pytest.mark.parametrize(
    ("over_it_s", "is_told_by_it"), [(1.0, False), (14.0, False), (16.0, True), (31.0, True)]
)
def test_samples_that_are_drawn_after_a_validation_are_not_its_loaders(
    over_it_s: float, is_told_by_it: bool
) -> None:
    validating = Planted(fetch_s=0.0001, compute_s=0.005, role="evaluation")
    validating.loader = replace(
        validating.loader, id=1, site="val.py:40", called_at="train.py:60", evaluation_s=over_it_s
    )
    drawing = HotLine("evaluation", "ddpm.py:8", "sample", ["train.py:61"], 90, 0.9, 28.0)
    case = case_of(
        Planted(workers=2, fetch_s=0.002, compute_s=0.01), validating, parts={"evaluation": 31.0}
    )
    lines = [drawing, replace(hot_line("forward"), called_from=["train.py:59"])]
    finding = only(replace(case, summary=replace(case.summary, hot_lines=lines)))
    assert finding.id == "slow_validation"
    assert ("over the loader of val.py:40" in finding.title) is is_told_by_it
    assert finding.site == ("train.py:60" if is_told_by_it else "train.py:61")
    assert "most of it goes to ddpm.py:8 (sample): 90 % of it" in finding.also


def test_several_loaders_of_which_none_is_most_of_evaluation_are_most_of_it_together() -> None:
    validating = [Planted(fetch_s=0.0001, compute_s=0.005, role="evaluation") for _ in range(3)]
    for number, one in enumerate(validating):
        one.loader = replace(one.loader, id=number + 1, site=f"val.py:{number}", evaluation_s=1.0)
    training = Planted(workers=2, fetch_s=0.002, compute_s=0.01)
    finding = only(case_of(training, *validating, parts={"evaluation": 3.1}))
    assert finding.site == "val.py:0"


@pytest.mark.parametrize(
    "healthy",
    [
        pytest.param({"workers": 2, "fetch_s": 0.01, "compute_s": 0.03}, id="workers keep up"),
        pytest.param({"fetch_s": 0.0004, "compute_s": 0.03}, id="data in memory, no workers"),
        pytest.param(
            {"workers": 4, "fetch_s": 0.01, "compute_s": 0.03, "passes": 10, "start_s": 0.001},
            id="quick starts",
        ),
        pytest.param(
            {"workers": 2, "fetch_s": 0.004, "compute_s": 0.03, "slow_every": 40},
            id="slow samples that the buffer hides",
        ),
        pytest.param(
            {"workers": 4, "fetch_s": 0.01, "reading": 0.9, "compute_s": 0.03},
            id="reading that nobody waits for",
        ),
        pytest.param(
            {
                "workers": 2,
                "fetch_s": 0.001,
                "compute_s": 0.004,
                "receive_s": Interval.exactly(0.0015),
                "delivery_s": 0.0015,
            },
            id="a plain batch takes its time to be taken over",
        ),
        pytest.param(
            {
                "fetch_s": 0.0001,
                "running": 1.0,
                "compute_s": 0.0003,
                "cores": 2,
                "receive_s": Interval(0.0003, 0.0004, 0.0006),
                "delivery_s": 0.0004,
            },
            id="batches that no worker could hand over sooner",
        ),
    ],
)
def test_healthy_runs_have_no_finding(healthy: dict[str, Any]) -> None:
    assert found(case_of(Planted(**healthy))) == []


def test_few_steady_steps_find_nothing() -> None:
    planted = Planted(fetch_s=0.03, compute_s=0.01)
    assert found(case_of(planted, steady_steps=19)) == []
    assert found(case_of(planted, steady_steps=20)) == ["serial_loading"]


def test_a_gain_below_the_runs_own_noise_is_not_told() -> None:
    healthy = Planted(workers=2, fetch_s=0.002, compute_s=0.01)
    parts = {"gc": 0.1}  # a twentieth
    assert found(case_of(healthy, parts=parts)) == ["gc_pauses"]
    uneven = case_of(healthy, parts=parts, drift=0.05)
    assert least_gain(uneven.noise) > 0.05
    assert found(uneven) == []


def test_a_machine_that_gets_slower_hides_nothing_that_slows_with_it() -> None:
    healthy = Planted(workers=2, fetch_s=0.002, compute_s=0.01)
    parts = {"gc": 0.1}  # a twentieth
    alike = case_of(healthy, parts=parts, drift=0.2, halves={"gc": (0.05, 0.05)})
    assert alike.noise > 0.1
    assert found(alike) == ["gc_pauses"]
    now_and_then = case_of(healthy, parts=parts, drift=0.2, halves={"gc": (0.02, 0.08)})
    assert found(now_and_then) == []
    # Halves of the same length may differ in what they consist of: that alone hides nothing.
    even = case_of(healthy, parts=parts, halves={"gc": (0.02, 0.08)})
    assert found(even) == ["gc_pauses"]


def test_what_may_lose_stands_out_from_all_noise_or_is_not_told() -> None:
    unsure = {"compute_cores": Interval(1.0, 1.2, 2.0)}
    planted = Planted(fetch_s=0.005, running=1.0, compute_s=0.025, cores=2, **unsure)
    halves = {"data_wait": (0.17, 0.17)}
    [finding] = diagnose(case_of(planted, halves=halves)).findings
    assert finding.predicted_speedup is not None
    assert finding.predicted_speedup[0] < 1
    assert found(case_of(planted, halves=halves, drift=0.2)) == []
    little = Planted(fetch_s=0.002, running=1.0, compute_s=0.028, cores=2, **unsure)
    assert found(case_of(little, halves={"data_wait": (0.07, 0.07)})) == []


def test_the_noise_of_steps_hides_nothing_that_lies_outside_of_them() -> None:
    healthy = Planted(workers=2, fetch_s=0.002, compute_s=0.01)
    uneven = case_of(healthy, parts={"checkpoint": 0.1}, drift=0.05)
    assert found(uneven) == ["slow_checkpoints"]


def test_a_run_of_which_training_is_little_is_judged_by_its_training() -> None:
    """A short one, to see how it goes, whose imports take longer than its steps."""
    healthy = Planted(workers=2, fetch_s=0.002, compute_s=0.01)
    case = case_of(healthy, parts={"checkpoint": 0.15})
    run = replace(case.summary.run, wall_s=20 * case.training_s)
    assert found(replace(case, summary=replace(case.summary, run=run))) == ["slow_checkpoints"]


def test_thresholds_can_be_set_both_ways() -> None:
    planted = Planted(fetch_s=0.03, compute_s=0.01)
    assert found(case_of(planted, settings={"serial_loading.wait_share": 0.9})) == []
    little = Planted(fetch_s=0.0005, compute_s=0.01)
    assert found(case_of(little)) == []
    lower = {"serial_loading.wait_share": 0.01}
    assert found(case_of(little, settings=lower)) == ["serial_loading"]


def test_settings_are_read_strictly_from_the_user_and_leniently_from_a_run() -> None:
    assert parsed_settings(["python_in_loop.share=0.2"]) == {"python_in_loop.share": 0.2}
    for wrong in ("python_in_loop=0.2", "nothing.share=1", "python_in_loop.share=x"):
        with pytest.raises(UnknownThreshold):
            parsed_settings([wrong])
    for wrong_value in ("nan", "-1", "inf", "1.5"):
        with pytest.raises(UnknownThreshold):
            parsed_settings([f"python_in_loop.share={wrong_value}"])
    told = {"python_in_loop.share": 0.2, "nothing.share": 1, "gc_pauses.share": "x"}
    assert rule_settings(told) == {"python_in_loop.share": 0.2}
    assert rule_settings(None) == {}


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
def test_each_rule_explains_itself(rule: Any) -> None:
    for opening in ("What it means:", "How it is measured:", "When it is wrong:", "What to do:"):
        assert f"\n\n{opening}" in rule.explanation
    assert rule.thresholds
    assert all(one.source for one in rule.thresholds.values())
    assert f"{rule.id}.{next(iter(rule.thresholds))}" in threshold_names()


def test_findings_are_ranked_by_what_they_recover() -> None:
    planted = Planted(fetch_s=0.02, compute_s=0.01)
    case = case_of(planted, parts={"checkpoint": 0.4, "gc": 0.8})
    told = diagnose(case).findings
    assert [one.id for one in told] == ["serial_loading", "gc_pauses", "slow_checkpoints"]
    recovered = [one.recoverable_s or 0.0 for one in told]
    assert recovered == sorted(recovered, reverse=True)


def test_a_loader_that_the_model_does_not_know_is_not_judged() -> None:
    planted = Planted(fetch_s=0.03, compute_s=0.01)
    case = case_of(planted)
    unknown = replace(case, feeding=[replace(case.feeding[0], inputs=None, cause=None)])
    assert found(unknown) == []
    assert summaries.healthy().findings == []


def test_on_a_device_only_that_counts_in_which_it_had_run_dry() -> None:
    healthy = Planted(workers=2, fetch_s=0.002, compute_s=0.01)
    case = case_of(healthy, parts={"other": 1.0, "gc": 0.5})
    assert found(on_device(case)) == []
    assert found(on_device(case, host_s=0.0)) == []
    assert "python_in_loop" in found(on_device(case, host_s=1.0))


@pytest.mark.parametrize(
    ("python_s", "expected"),
    [
        (0.0, ["launch_bound"]),
        (0.4, ["launch_bound", "python_in_model"]),
        (1.4, ["python_in_model"]),
    ],
)
def test_what_keeps_the_host_from_giving_out_work_is_counted_once(
    python_s: float, expected: list[str]
) -> None:
    case = on_device(case_of(Planted(workers=2, fetch_s=0.002, compute_s=0.01)), launch_s=1.0)
    told = PythonInModel(looks=100, held=20, seconds={"forward": python_s}, lines=[])
    summary = replace(case.summary, python_in_model=told)
    found_now = diagnose(replace(case, summary=summary)).findings
    assert [one.id for one in found_now] == expected
    # Longer than the device waited for the host it cannot have held it up.
    assert sum(one.recoverable_s or 0.0 for one in found_now) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("python_s", "expected"), [(0.6, ["module_hooks"]), (1.2, ["python_in_model", "module_hooks"])]
)
def test_python_code_in_hooks_is_counted_once(python_s: float, expected: list[str]) -> None:
    parts = {"forward": 1.5}
    case = case_of(Planted(workers=2, fetch_s=0.002, compute_s=0.01), parts=parts)
    hooks = HooksInForward(looks=100, share=0.4, seconds=0.6, lines=[hot_line("forward")])
    told = PythonInModel(looks=100, held=20, seconds={"forward": python_s}, lines=[])
    summary = replace(case.summary, python_in_model=told, hooks_in_forward=hooks)
    found_now = diagnose(replace(case, summary=summary)).findings
    assert [one.id for one in found_now] == expected
    assert found_now[-1].site == "data.py:12"
    assert found_now[-1].is_at_most


def test_a_device_that_keeps_up_with_small_work_and_one_that_does_not() -> None:
    case = on_device(case_of(Planted(workers=2, fetch_s=0.002, compute_s=0.01)), unknown_s=1.0)
    assert found(case) == []
    [device] = case.summary.devices or ()
    dry = dict.fromkeys(("forward", "backward", "optimizer"), 0.95)
    keeps_up = replace(case.summary, devices=[replace(device, ran_dry=dry)])
    assert found(replace(case, summary=keeps_up)) == ["launch_bound"]


@pytest.mark.parametrize(
    ("unfused", "update_s", "told"),
    [
        (("AdamW", "SGD"), 2.0, ", fused=True for SGD and AdamW"),
        (("Muon", "Adagrad"), 2.0, ""),
        ((), 2.0, ""),  # they are fused, or nobody knows
        (("AdamW",), 0.1, ""),
    ],
)
@pytest.mark.parametrize("by_lightning", [True, False])
def test_which_optimizers_of_a_device_are_to_be_fused(
    unfused: tuple[str, ...], update_s: float, told: str, by_lightning: bool
) -> None:
    settings = TorchSettings(
        unfused=tuple(OptimizerCall(name) for name in unfused), trains_by_lightning=by_lightning
    )
    parts = {"optimizer": update_s}
    case = case_of(Planted(workers=2, fetch_s=0.002), parts=parts, torch=settings)
    finding = only(on_device(case, launch_s=1.0))
    assert finding.id == "launch_bound"
    assert f"{told}; larger batches" in finding.advice
    assert ("fused" in finding.advice) is bool(told)
    assert ("Lightning's Trainer ends" in minded(finding)) is (by_lightning and bool(told))


@pytest.mark.parametrize("is_compiled", [True, False])
def test_small_work_is_joined_first_and_graphs_have_their_caution(is_compiled: bool) -> None:
    case = on_device(case_of(Planted(workers=2, fetch_s=0.002)), launch_s=1.0)
    if is_compiled:
        case = replace(case, summary=replace(case.summary, compilations=[compiled(0, 0.0)]))
    finding = only(case)
    assert finding.id == "launch_bound"
    further = 'torch.compile(..., mode="reduce-overhead") where shapes stay the same'
    assert finding.advice.startswith(further if is_compiled else "torch.compile(model), ")
    assert "clone() those that are kept beyond the step" in minded(finding)


@pytest.mark.parametrize("package", [None, "transformers"])
def test_what_gradients_of_gradients_go_through_is_not_to_be_compiled(package: str | None) -> None:
    planted = Planted(workers=2, fetch_s=0.002)
    planted.loader = replace(planted.loader, built_by=package)
    case = on_device(case_of(planted), launch_s=1.0)
    plain = only(case)
    assert "double backward" not in minded(plain)
    twice = replace(case, torch=replace(case.torch, differentiates_gradients=True))
    finding = only(twice)
    assert finding.id == "launch_bound"
    advice = finding.advice or ""
    assert "models alone that no gradient of a gradient goes through" in advice
    assert "torch.cuda.graph around the step" in advice
    assert "torch.compile(model)" not in advice
    assert "torch_compile=" not in advice
    assert "does not currently support double backward" in minded(finding)
    # What is compiled already goes as it is.
    further = replace(twice, summary=replace(twice.summary, compilations=[compiled(0, 0.0)]))
    assert 'mode="reduce-overhead"' in (only(further).advice or "")
    assert "double backward" not in minded(only(further))
    around = replace(twice, torch=replace(twice.torch, compiles_to_graphs=True))
    assert "double backward" in minded(only(around))


@pytest.mark.parametrize(
    ("site", "function", "share", "is_told"),
    [
        ("model.py:18", "forward", 0.8, True),
        ("model.py:18", "forward", 0.3, False),
        ("train.py:30", "train", 0.9, False),  # where the model is called
        ("train.py:30", "<module>", 0.9, False),
    ],
)
def test_a_line_that_gives_out_most_of_forward_may_be_a_loops(
    site: str, function: str, share: float, is_told: bool
) -> None:
    case = on_device(case_of(Planted(workers=2, fetch_s=0.002)), launch_s=1.0)
    lines = [
        HotLine("forward", site, function, [], 50, 0.9, 1.0, line_share=share),
        HotLine("backward", "train.py:31", "train", [], 50, 1.0, 1.0, line_share=1.0),
    ]
    finding = only(replace(case, summary=replace(case.summary, hot_lines=lines)))
    assert (finding.id, finding.site) == ("launch_bound", site)
    assert (f"{site} ({function}): if it is called in a loop" in " ".join(finding.also)) is is_told


@pytest.mark.parametrize(
    ("by_lightning", "clips", "change"),
    [(True, True, {}), (True, False, {"fused": True}), (False, True, {"fused": True})],
)
def test_lightning_refuses_fused_optimizers_that_clip(
    by_lightning: bool, clips: bool, change: dict[str, Any]
) -> None:
    settings = replace(looped(), trains_by_lightning=by_lightning)
    healthy = Planted(workers=2, fetch_s=0.002, compute_s=0.01)
    case = case_of(healthy, parts={"optimizer": 1.0}, torch=settings)
    finding = only(replace(case, clips_gradients=clips))
    assert (finding.id, finding.change) == ("slow_optimizer", change)
    assert ("Lightning's Trainer ends" in minded(finding)) is by_lightning


@pytest.mark.parametrize("may_resume", [True, False])
def test_a_state_that_is_loaded_takes_fusing_back(may_resume: bool) -> None:
    settings = replace(looped(), may_resume=may_resume)
    healthy = Planted(workers=2, fetch_s=0.002, compute_s=0.01)
    finding = only(case_of(healthy, parts={"optimizer": 1.0}, torch=settings))
    assert (finding.id, finding.change) == ("slow_optimizer", {"fused": True})
    assert ("for g in optimizer.param_groups: g['fused'] = True" in minded(finding)) is may_resume


def test_a_device_that_waits_for_copies() -> None:
    case = on_device(case_of(Planted(workers=2, fetch_s=0.002)), copy_s=0.6)
    finding = only(case)
    assert finding.id == "blocking_copies"
    assert finding.change == {"pin_memory": True, "non_blocking": True}
    assert finding.also[0].startswith("that makes copies quicker, and none of them overlap")
    assert found(on_device(case, copy_s=0.1)) == []


@pytest.mark.parametrize(("mib", "is_told"), [(400, True), (1, False), (0, False)])
def test_what_pinning_takes_is_minded_where_batches_are_large(mib: int, is_told: bool) -> None:
    planted = Planted(workers=2, fetch_s=0.002)
    fetch = planted.loader.fetch
    assert fetch is not None
    planted.loader = replace(
        planted.loader, fetch=replace(fetch, batch_bytes=mib * summaries.MIB or None)
    )
    finding = only(on_device(case_of(planted), copy_s=0.6))
    assert finding.id == "blocking_copies"
    assert ("a batch of 400 MiB is copied once more to be pinned" in minded(finding)) is is_told
    assert ("64.5 ms to 140 ms" in minded(finding)) is is_told


def test_what_is_made_on_a_device_cannot_be_pinned() -> None:
    planted = Planted(workers=2, fetch_s=0.002)
    planted.loader = replace(planted.loader, touches_device=True)
    finding = only(on_device(case_of(planted), copy_s=0.6))
    assert (finding.id, finding.change, finding.cautions) == ("blocking_copies", {}, [])
    assert finding.advice.startswith("move .to(device) out of the dataset or collate function")
    assert "pin_memory" not in finding.advice


def test_what_comes_back_from_a_device_is_not_to_be_read_too_early() -> None:
    case = on_device(case_of(Planted(workers=2, fetch_s=0.002)), copy_s=0.6)
    back = [replace(row, direction="d2h") for row in case.summary.transfers]
    finding = only(replace(case, summary=replace(case.summary, transfers=back)))
    assert (finding.id, finding.change) == ("blocking_copies", {})
    assert "non_blocking" not in finding.advice


def test_what_a_library_copies_for_a_line_may_not_be_told_not_to_block() -> None:
    case = on_device(case_of(Planted(workers=2, fetch_s=0.002)), copy_s=0.6)
    by_it = [replace(row, by_library_share=0.5) for row in case.summary.transfers]
    finding = only(replace(case, summary=replace(case.summary, transfers=by_it)))
    assert (finding.id, finding.change) == ("blocking_copies", {"pin_memory": True})
    assert "non_blocking=True for each tensor (a library makes the copies" in finding.advice


@pytest.mark.parametrize(
    ("package", "advice"),
    [
        (None, "DataLoader(..., pin_memory=True) with .to(device, non_blocking=True)"),
        (
            "transformers",
            "TrainingArguments(..., dataloader_pin_memory=True) with "
            'accelerator_config={"non_blocking": True}',
        ),
    ],
)
def test_batches_are_pinned_by_who_builds_the_loader(package: str | None, advice: str) -> None:
    planted = Planted(workers=2, fetch_s=0.002)
    planted.loader = replace(planted.loader, built_by=package)
    assert only(on_device(case_of(planted), copy_s=0.6)).advice == advice


def test_what_no_loader_gives_is_pinned_by_itself() -> None:
    case = on_device(case_of(Planted(workers=2, fetch_s=0.002)), copy_s=0.6)
    case = replace(case, feeding=[], summary=replace(case.summary, loaders=[]))
    finding = only(case)
    assert (finding.id, finding.change) == ("blocking_copies", {"non_blocking": True})
    assert finding.advice == ".pin_memory() on the tensor with .to(device, non_blocking=True)"
    assert "cannot be swapped out" in minded(finding)


def test_what_a_loader_that_pins_cannot_pin_needs_a_method() -> None:
    planted = Planted(workers=2, fetch_s=0.002)
    planted.loader = replace(planted.loader, pin_memory=True)
    case = on_device(case_of(planted), copy_s=0.6)
    finding = only(case)
    assert (finding.id, finding.change) == ("blocking_copies", {"non_blocking": True})
    assert "DataLoader" not in finding.advice
    assert finding.advice.startswith("a pin_memory() method for the batch's own class")
    pinned = [replace(row, pinned_share=1.0) for row in case.summary.transfers]
    told = only(replace(case, summary=replace(case.summary, transfers=pinned)))
    assert "pin_memory" not in told.advice
    assert told.cautions == []


def pinned_copies(wait_s: float, blocking: bool, built_by: str | None = None) -> Case:
    """Copies for 0.6 s, in `wait_s` of which the host was in one and the device had nothing."""
    planted = Planted(workers=2, fetch_s=0.002)
    planted.loader = replace(planted.loader, pin_memory=True, built_by=built_by)
    case = on_device(case_of(planted), copy_s=0.6)
    [device] = case.summary.devices or ()
    share = 0.0 if blocking else 1.0
    rows = [
        replace(row, pinned_share=1.0, non_blocking_share=share) for row in case.summary.transfers
    ]
    devices = [replace(device, copy_wait_s=wait_s)]
    return replace(case, summary=replace(case.summary, transfers=rows, devices=devices))


@pytest.mark.parametrize(("wait_s", "blocking"), [(0.0, False), (0.0, True), (0.1, True)])
def test_copies_that_are_pinned_come_between_steps_all_the_same(
    wait_s: float, blocking: bool
) -> None:
    finding = only(pinned_copies(wait_s, blocking))
    assert (finding.id, finding.change) == ("blocking_copies", {})
    assert finding.advice.startswith("copy the next batch on a stream of its own")
    assert "fewer bytes" in finding.advice
    assert finding.recoverable_s == pytest.approx(0.6)
    told = [one for one in finding.also if one.startswith("non_blocking=True saves only")]
    assert len(told) == blocking


@pytest.mark.parametrize(
    ("built_by", "advice", "change"),
    [
        (None, ".to(device, non_blocking=True)", {"non_blocking": True}),
        ("transformers", 'TrainingArguments(..., accelerator_config={"non_blocking": True})', {}),
    ],
)
def test_what_the_host_waits_for_in_pinned_copies_is_all_that_non_blocking_saves(
    built_by: str | None, advice: str, change: dict[str, bool]
) -> None:
    finding = only(pinned_copies(0.5, blocking=True, built_by=built_by))
    assert (finding.advice, finding.change) == (advice, change)
    assert finding.recoverable_s == pytest.approx(0.5)
    assert "do not overlap" in finding.also[0]


def test_logits_that_hugging_faces_evaluation_brings_back_are_to_stay() -> None:
    planted = Planted(workers=2, fetch_s=0.002)
    planted.loader = replace(planted.loader, built_by="transformers")
    case = on_device(case_of(planted), copy_s=0.6)
    for each, is_told in ((2_000_000, True), (1_000, False)):
        rows = [
            replace(row, direction="d2h", count=4, bytes=4 * each, by_library_share=1.0)
            for row in case.summary.transfers
        ]
        back = replace(case, summary=replace(case.summary, transfers=rows, sync_points=[]))
        advice = only(back).advice
        assert ("preprocess_logits_for_metrics" in advice) is is_told


def test_samples_of_a_librarys_dataset_are_to_be_cheaper_where_workers_may_lose() -> None:
    """No line of the user's makes them: the looks at the wait met the loop alone."""
    unsure = {"compute_cores": Interval(1.0, 1.8, 2.0), "receive_s": Interval(0.0, 0.012, 0.03)}
    planted = Planted(fetch_s=0.024, running=1.0, compute_s=0.02, cores=2, **unsure)
    case = case_of(planted)
    assert found(case) == []
    loop = replace(hot_line("data_wait"), site="train.py:50")
    seen = replace(case, summary=replace(case.summary, hot_lines=[loop]))
    finding = only(seen)
    assert (finding.id, finding.site, finding.change) == ("serial_loading", "train.py:41", {})
    assert finding.advice.startswith("cheaper samples: what comes out the same each time")
    assert any("helps only a rerun tells" in told for told in finding.also)
    planted.loader = replace(planted.loader, dataset="Dataset")
    rows = only(replace(case_of(planted), summary=seen.summary))
    assert rows.advice.startswith("cheaper samples: of a datasets.Dataset only the columns that")
    planted.loader = replace(planted.loader, holds_tensors=True)
    tensors = case_of(planted)
    assert found(replace(tensors, summary=replace(tensors.summary, hot_lines=[loop]))) == []


def test_what_chains_of_syncs_cost_at_most_is_all_of_their_time() -> None:
    case = on_device(case_of(Planted(workers=2, fetch_s=0.002)), sync_s=0.3, unknown_s=0.5)
    devices = [replace(one, exposed_s={"sync": [0.3, 0.7]}) for one in case.summary.devices or ()]
    finding = only(replace(case, summary=replace(case.summary, devices=devices)))
    most = case.settled_s / (case.settled_s - 0.7)
    assert finding.recoverable_s == pytest.approx(0.3)
    assert finding.predicted_speedup is not None
    assert finding.predicted_speedup[1] == pytest.approx(most)


def test_a_sync_that_the_device_felt_and_one_that_it_did_not() -> None:
    case = case_of(Planted(workers=2, fetch_s=0.002))
    finding = only(on_device(case, sync_s=0.6))
    assert (finding.id, finding.site) == ("exposed_syncs", "train.py:60")
    assert found(on_device(case, sync_s=0.0)) == []


@pytest.mark.parametrize(("loader_s", "expected"), [(6.0, ["serial_loading"]), (0.1, [])])
def test_a_wait_that_the_device_did_not_feel_is_no_finding(
    loader_s: float, expected: list[str]
) -> None:
    planted = Planted(fetch_s=0.03, compute_s=0.01)
    device = idle_device({"loader_s": loader_s})
    case = case_of(planted, devices=[device], device="cuda:0")
    assert found(case) == expected
    for finding in diagnose(case).findings:
        assert finding.predicted_speedup is not None
        assert finding.predicted_speedup[1] <= case.training_s / (case.training_s - loader_s) + 1e-9


def felt(planted: Planted, idle_s: float, cause: str = "loader_s", **parts: float) -> Case:
    """Returns a run on a device that was idle for so long because of `cause`."""
    devices = [idle_device({cause: idle_s})]
    return case_of(planted, devices=devices, device="cuda:0", parts=parts)


def restarted(**changes: Any) -> Planted:
    plain = {"workers": 2, "fetch_s": 0.004, "compute_s": 0.01, "passes": 10, "start_s": 0.3}
    return Planted(**{**plain, **changes})


@pytest.mark.parametrize(
    ("planted", "rule"),
    [
        (with_slow_starts(0.1, 0.09), "slow_pass_starts"),
        (restarted(), "worker_restart"),
        (handed_over(), "needless_workers"),
    ],
)
def test_of_starts_and_workers_a_device_feels_only_what_it_is_idle_for(
    planted: Planted, rule: str
) -> None:
    host = case_of(planted)
    assert rule in found(host)
    waited_s = sum(host.training[key] for key in LOADER_KEYS)
    gains = []
    for share in (1.0, 0.5):
        case = felt(planted, share * waited_s)
        finding = next(one for one in diagnose(case).findings if one.id == rule)
        gains.append(finding.recoverable_s or 0.0)
        assert gains[-1] <= share * waited_s + 1e-9
        assert finding.predicted_speedup is not None
        most = case.training_s / (case.training_s - share * waited_s)
        # What is left for the host may get faster, what the device works does not.
        most /= 1 - FASTER_REST * (1 - 1 / most)
        assert finding.predicted_speedup[1] <= most + 1e-9
    assert gains[1] < 0.7 * gains[0]
    assert found(felt(planted, 0.001)) == []


@pytest.mark.parametrize(("share", "is_told"), [(1.0, True), (0.3, False)])
def test_a_line_gives_no_more_than_a_device_is_idle_for(share: float, is_told: bool) -> None:
    # Without the line a step takes a tenth on the host, but the device works for most of the rest.
    planted = Planted(fetch_s=0.09, running=1.0, compute_s=0.01, cores=2)
    planted.loader = replace(planted.loader, hot_lines=[hot_line("making batches", share=0.98)])
    host = case_of(planted)
    idle_s = share * sum(host.training[key] for key in LOADER_KEYS)
    finding = only(felt(planted, idle_s))
    assert finding.id == "serial_loading"
    assert finding.advice.startswith("cheaper samples first: data.py:12 (decode)") is is_told
    case = felt(planted, idle_s)
    on_host, there = (without_line(one, one.feeding[0]) for one in (host, case))
    assert on_host is not None
    assert on_host == pytest.approx(8.5, rel=0.05)
    assert there == pytest.approx(min(on_host, case.training_s / (case.training_s - idle_s)))


@pytest.mark.parametrize(("workers", "rule"), [(0, "serial_loading"), (1, "too_few_workers")])
def test_no_more_workers_than_a_device_can_use(workers: int, rule: str) -> None:
    # The host is done with a step after 4 ms, and a batch takes 60: sixteen workers would keep up.
    planted = Planted(workers=workers, fetch_s=0.06, running=1.0, compute_s=0.004, cores=32)
    host = only(case_of(planted)).change["num_workers"]
    assert host > 10
    waited_s = sum(case_of(planted).training[key] for key in LOADER_KEYS)
    # For half of the waits the device works: it takes some 30 ms a step, for which two will do.
    finding = only(felt(planted, 0.5 * waited_s))
    assert finding.id == rule
    assert finding.change["num_workers"] in (2, 3)
    assert only(felt(planted, waited_s)).change["num_workers"] == host


def test_what_evaluation_waits_for_is_felt_by_what_a_device_is_idle_in_it() -> None:
    planted = restarted(role="evaluation")
    waits = [case_of(planted, parts={"evaluation": 4.0})]
    waits.append(felt(planted, 4.0, "evaluation_s", evaluation=4.0))
    assert [found(case) for case in waits] == [["worker_restart"]] * 2
    assert "worker_restart" not in found(felt(planted, 0.1, "evaluation_s", evaluation=4.0))


def test_all_together_is_played_again_and_is_no_sum() -> None:
    planted = Planted(fetch_s=0.02, compute_s=0.01)
    case = case_of(planted, parts={"checkpoint": 1.0})
    told = diagnose(case).findings
    assert [one.id for one in told] == ["serial_loading", "slow_checkpoints"]
    # Two workers give a batch each 10 ms, as training takes them: 2 of 7 seconds remain.
    assert together(case, told) == pytest.approx(7 / 2, rel=0.15)
    assert together(case, told[:1]) is None
    # Also where each of them has a lower bound of its own.
    both = [told[0], replace(told[1], is_at_most=False)]
    assert together(case, both) == pytest.approx(7 / 2, rel=0.15)


def test_one_line_may_build_the_loaders_of_training_and_evaluation() -> None:
    training = Planted(fetch_s=0.02, compute_s=0.01)
    evaluation = Planted(fetch_s=0.02, compute_s=0.002, role="evaluation")
    evaluation.loader = replace(evaluation.loader, id=1)
    case = case_of(training, evaluation, parts={"evaluation": 4.0})
    told = diagnose(case).findings
    assert {one.id for one in told} == {"serial_loading", "slow_validation"}
    everything = together(case, told)
    assert everything is not None
    assert everything > max(one.predicted_speedup[0] for one in told if one.predicted_speedup)
    saved_s = sum(one.recoverable_s or 0.0 for one in told)
    assert everything == pytest.approx(case.training_s / (case.training_s - saved_s), rel=0.2)


def test_steps_that_get_faster_leave_checkpoints_as_they_are() -> None:
    planted = Planted(fetch_s=0.02, compute_s=0.001)
    case = case_of(planted, parts={"checkpoint": 4.0})
    loading, saving = diagnose(case).findings
    assert (loading.of_steps, saving.of_steps) == (True, False)
    loading = replace(loading, is_at_most=True, predicted_speedup=[1.0, 20.0])
    saving = replace(saving, recoverable_s=0.0, predicted_speedup=[1.0, 1.0])
    everything = together(case, [loading, saving])
    assert everything is not None
    assert everything <= case.training_s / 4.0


def evaluated_with_new_workers(evaluation_s: float) -> Case:
    """Workers are started for each of 20 passes of evaluation: 0.1 s and more each."""
    training = Planted(workers=2, fetch_s=0.002, compute_s=0.01)
    evaluation = Planted(
        workers=2, fetch_s=0.002, compute_s=0.002, start_s=0.1, passes=20, role="evaluation"
    )
    evaluation.loader = replace(evaluation.loader, id=1)
    return case_of(training, evaluation, parts={"evaluation": evaluation_s})


@pytest.mark.parametrize(
    ("line", "share", "is_joined"),
    [
        ("train.py:71", 0.9, True),
        ("train.py:80", 0.9, False),
        ("train.py:69", 0.9, False),
        ("save.py:71", 0.9, False),
        ("train.py:71", 0.5, False),
    ],
)
def test_what_follows_a_checkpoint_belongs_to_it(line: str, share: float, is_joined: bool) -> None:
    """Such as a rename, for which the disk is waited for."""
    told = diagnose(with_saves((0.0, 0.3), (0.0, 0.3), line, share)).findings
    by_id = {one.id: one for one in told}
    assert (set(by_id) == {"slow_checkpoints"}) is is_joined
    if is_joined:
        joined = by_id["slow_checkpoints"]
        assert joined.recoverable_s == pytest.approx(1.0, rel=0.05)
        assert joined.also[-1].startswith(f"at {line}, and counted with it: Python code between")


def with_saves(
    saved: tuple[float, float], python: tuple[float, float], line: str, share: float = 0.9
) -> Case:
    """Half a second each of saving and of Python at a line, with shares of the halves' steps."""
    case = case_of(
        Planted(workers=2, fetch_s=0.002, compute_s=0.01),
        parts={"checkpoint": 0.5, "other": 0.5},
        halves={"checkpoint": saved, "other": python},
    )
    there = replace(hot_line("other", 0.95), site=line, function="save", line_share=share)
    return replace(case, summary=replace(case.summary, hot_lines=[there]))


@pytest.mark.parametrize(
    ("saved", "python", "is_joined"),
    [
        pytest.param((0.0, 0.3), (0.01, 0.31), True, id="with saves, and a little in every step"),
        pytest.param((0.0, 0.3), (0.15, 0.15), False, id="in every step"),
        pytest.param((0.0, 0.3), (0.1, 0.2), False, id="as much in steps that do not save"),
        pytest.param((0.0, 0.3), (0.3, 0.0), False, id="in steps that do not save"),
        pytest.param((0.15, 0.15), (0.15, 0.15), False, id="of saves in every step nobody knows"),
        # The last epoch's, say: what trains no further is in no step.
        pytest.param((0.0, 0.0), (0.0, 0.0), True, id="behind the last step, as the saves"),
        pytest.param(
            (0.0, 0.34), (0.0, 0.0), False, id="behind the last step, which saves no more"
        ),
    ],
)
def test_only_what_comes_with_saves_belongs_to_them(
    saved: tuple[float, float], python: tuple[float, float], is_joined: bool
) -> None:
    told = diagnose(with_saves(saved, python, "train.py:72")).findings
    by_id = {one.id: one for one in told}
    assert (set(by_id) == {"slow_checkpoints"}) is is_joined
    if not is_joined:
        assert by_id["python_in_loop"].site == "train.py:72"
        assert by_id["slow_checkpoints"].recoverable_s == pytest.approx(0.5, rel=0.05)


def test_evaluation_that_is_mostly_starting_workers_has_that_cause_alone() -> None:
    finding = only(evaluated_with_new_workers(2.6))
    assert (finding.id, finding.change) == ("worker_restart", {"persistent_workers": True})


def test_starting_workers_for_evaluation_is_part_of_what_evaluation_takes() -> None:
    case = evaluated_with_new_workers(5.0)
    told = diagnose(case).findings
    assert {one.id for one in told} == {"slow_validation", "worker_restart"}
    everything = together(case, told)
    of_all = next(one for one in told if one.id == "slow_validation")
    assert everything is not None
    assert of_all.predicted_speedup is not None
    assert everything <= of_all.predicted_speedup[1] * 1.001


def test_less_python_beside_full_workers_gives_nothing_together_either() -> None:
    # Steps of 20 ms, half of them Python; with two workers a batch comes each 10 ms, no sooner.
    planted = Planted(fetch_s=0.02, compute_s=0.02, running=1.0, cores=2)
    case = case_of(planted, parts={"checkpoint": 0.5})
    told = diagnose(case).findings
    everything = together(case, told)
    assert everything is not None
    alone = max(one.predicted_speedup[1] for one in told if one.predicted_speedup)
    assert everything < alone * 1.5


def test_a_loop_of_several_ranks_may_wait_for_the_others() -> None:
    healthy = Planted(workers=2, fetch_s=0.002, compute_s=0.01)
    case = case_of(healthy, parts={"other": 1.0})
    assert found(case) == ["python_in_loop"]
    run = replace(case.summary.run, world_size=2)
    assert found(replace(case, summary=replace(case.summary, run=run))) == []


def test_a_worker_that_computes_answers_late() -> None:
    planted = Planted(
        workers=2,
        fetch_s=0.07,
        running=1.0,
        compute_s=0.005,
        cores=2,
        receive_s=Interval.exactly(0.02),
        delivery_s=0.02,
    )
    planted.loader = replace(planted.loader, receive_s=0.02 * STEPS, receive_cpu_s=0.001 * STEPS)
    assert found(case_of(planted)) == ["saturated_cpu"]


def test_a_line_that_waits_for_another_thread_is_not_told_to_do_less() -> None:
    healthy = Planted(workers=2, fetch_s=0.002, compute_s=0.01)
    case = case_of(healthy, parts={"other": 1.0})
    line = replace(hot_line("other"), waits_share=0.9)
    finding = only(replace(case, summary=replace(case.summary, hot_lines=[line])))
    assert (finding.id, finding.site) == ("python_in_loop", "data.py:12")
    assert finding.title.startswith("between the parts of a step the loop waits for another thread")
    assert "what it waits for has to get quicker" in finding.advice
    assert "most of that may have to stay" in " ".join(finding.also)


def test_what_other_processes_compute_meanwhile_has_to_stay() -> None:
    line = replace(hot_line("other"), waits_share=0.9)
    alone = case_of(Planted(compute_s=0.01, fetch_s=0.0001), parts={"other": 2.0})
    trained_s = alone.training_s

    def told(role: str, *percents: float, cores: float = 2.0) -> Finding:
        processes = [
            {"role": role, "cpu_percent": {"mean": one}, "first_s": 0.0, "last_s": trained_s}
            for one in percents
        ]
        assert alone.summary.system is not None
        cpu = alone.summary.system.cpu | {"cores_usable": cores}
        system = replace(alone.summary.system, processes=processes, cpu=cpu)
        return only(replace(alone, summary=replace(alone.summary, hot_lines=[line], system=system)))

    assert "may have to stay" in " ".join(told("main", 100.0).also)
    both = told("child", 20.0, 20.0, 1.0)  # the third helps them
    assert "2 processes that the script started computed for" in " ".join(both.also)
    assert both.recoverable_s == pytest.approx(2.0 - 0.2 * trained_s, abs=0.05)
    one = told("child", 40.0)
    assert "a process that the script started" in " ".join(one.also)
    assert one.recoverable_s == pytest.approx(2.0 - 0.4 * trained_s, abs=0.05)


def test_what_may_be_trainprofs_own_time_is_no_finding() -> None:
    healthy = Planted(workers=2, fetch_s=0.0001, compute_s=0.0002)
    case = case_of(healthy, parts={"other": 0.02})  # 100 us a step
    own = replace(case.summary.overhead, per_step_us=40.0)
    training = replace(case.summary.training, steps=STEPS)
    summary = replace(case.summary, overhead=own, training=training)
    assert found(replace(case, summary=summary)) == []
    cheap = replace(summary, overhead=replace(own, per_step_us=1.0))
    assert found(replace(case, summary=cheap)) == ["python_in_loop"]


def test_a_model_of_functions_is_no_python_in_the_loop() -> None:
    case = case_of(Planted(workers=2, fetch_s=0.002), parts={"other": 1.0})
    functional = {**case.training, "forward": 0.0, "backward": case.training["forward"]}
    assert found(replace(case, training=functional)) == []


@pytest.mark.parametrize(
    ("called", "backward_s", "line", "is_told"),
    [
        (1.0, 0.01, {"torch_share": 0.1}, True),
        (0.6, 0.01, {"torch_share": 0.1}, True),
        (0.0, 0.01, {"torch_share": 0.1}, False),  # a model of functions
        (0.4, 0.01, {"torch_share": 0.1}, False),
        (1.0, 0.8, {"torch_share": 0.1}, False),  # functions, and a module among them
        (1.0, 0.01, {"torch_share": 0.9}, False),
        (1.0, 0.01, {"torch_share": None}, False),
        (1.0, 0.01, {"torch_share": 0.1, "is_end": True}, False),
        (1.0, 0.01, {"torch_share": 0.1, "share": 0.2}, False),
    ],
)
def test_python_beside_a_tiny_model_is_told_where_steps_call_modules(
    called: float, backward_s: float, line: dict[str, Any], is_told: bool
) -> None:
    case = case_of(parts={"other": 5.0, "backward": backward_s})
    training = {**case.training, "forward": 0.01}
    forward = np.where(np.arange(len(case.steps)) < called * len(case.steps), 50_000, 0)
    steps = replace(case.steps, per_step={**case.steps.per_step, "forward": forward})
    summary = replace(case.summary, hot_lines=[replace(hot_line("other"), **line)])
    case = replace(case, training=training, training_s=sum(training.values()))
    told = found(replace(case, steps=steps, summary=summary))
    assert ("python_in_loop" in told) is is_told


def test_where_a_librarys_loop_is_called_is_not_the_line_to_change() -> None:
    case = case_of(Planted(workers=2, fetch_s=0.002), parts={"other": 0.3})
    lines = [hot_line("other"), hot_line("forward")]
    library = replace(case, summary=replace(case.summary, hot_lines=lines))
    assert found(library) == []
    much = case_of(Planted(workers=2, fetch_s=0.002), parts={"other": 1.0})
    finding = only(replace(much, summary=replace(much.summary, hot_lines=lines)))
    # Forward and what follows may be one line of a loop of the user's own.
    assert (finding.site, finding.evidence["library_at"]) == (None, None)


def fitted(*between: HotLine, other_s: float = 1.0, **changes: Any) -> Case:
    """A run of a library's loop that is called at train.py:50."""
    case = case_of(Planted(workers=2, fetch_s=0.002), parts={"other": other_s})
    lines = [
        HotLine("forward", "net.py:9", "training_step", ["train.py:50", "train.py:60"], 90, 1, 1),
        HotLine("backward", "train.py:50", "main", ["train.py:60"], 90, 1.0, 1.0),
        *between,
    ]
    summary = replace(case.summary, hot_lines=lines)
    return replace(case, summary=summary, **changes)


LIGHTNING = TorchSettings(trains_by_lightning=True)
BY_LIBRARY = HotLine("other", "train.py:50", "main", ["train.py:60"], 90, 0.9, 1.0)


@pytest.mark.parametrize(
    ("line", "is_sure"),
    [
        (BY_LIBRARY, True),
        (replace(BY_LIBRARY, is_likely=True, is_end=True), False),
        (replace(BY_LIBRARY, share=0.2), False),
        (None, False),
    ],
)
def test_a_librarys_loop_is_named_where_it_is_called_with_its_settings(
    line: HotLine | None, is_sure: bool
) -> None:
    between = [] if line is None else [line]
    finding = only(fitted(*between, torch=LIGHTNING))
    assert (finding.id, finding.site) == ("python_in_loop", "train.py:50")
    assert finding.evidence["library_at"] == "train.py:50"
    called = "the loop of the library called at train.py:50 takes" in finding.title
    assert called is is_sure
    assert ("the library called at train.py:50" in finding.advice) is not is_sure
    assert ("hooks of your own" in finding.advice) is not is_sure
    assert "enable_progress_bar=False" in finding.advice
    assert "log_every_n_steps" in finding.advice
    assert "do it less often" not in finding.advice
    # Little of it is not told: a library's loop is what it is.
    assert found(fitted(*between, torch=LIGHTNING, other_s=0.3)) == []


def test_which_settings_a_librarys_loop_has() -> None:
    case = fitted(BY_LIBRARY, replace(BY_LIBRARY, part="optimizer"))
    assert "no progress bar, logging less often, fewer callbacks" in only(case).advice
    assert only(case).cautions == []
    [fed] = case.feeding
    by_trainer = replace(fed, loader=replace(fed.loader, built_by="transformers"))
    advice = only(replace(case, feeding=[by_trainer], torch=LIGHTNING)).advice
    assert "disable_tqdm=True, a larger logging_steps of TrainingArguments" in advice
    assert "its Trainer" not in advice


@pytest.mark.parametrize(
    ("lines", "site"),
    [
        pytest.param(
            [HotLine("other", "hooks.py:3", "on_batch_end", ["train.py:50"], 90, 0.9, 1.0)],
            "hooks.py:3",
            id="a hook of the user's",
        ),
        pytest.param([replace(BY_LIBRARY, site="train.py:53")], "train.py:53", id="a line of it"),
        pytest.param(
            [BY_LIBRARY, HotLine("optimizer", "train.py:51", "main", ["train.py:60"], 9, 1, 1)],
            None,
            id="the optimizer is stepped elsewhere",
        ),
        pytest.param(
            [HotLine("data_wait", "train.py:49", "main", ["train.py:60"], 9, 1, 1)],
            None,
            id="no line, and batches are taken elsewhere",
        ),
    ],
)
def test_a_loop_of_the_users_own_is_no_librarys(lines: list[HotLine], site: str | None) -> None:
    finding = only(fitted(*lines, torch=LIGHTNING))
    assert (finding.site, finding.evidence["library_at"]) == (site, None)
    assert "library" not in finding.title
    assert "settings" not in finding.advice


@pytest.mark.parametrize(
    ("built_at", "built_by", "is_librarys"),
    [
        ("train.py:50", "transformers", True),
        ("train.py:20", "transformers", False),
        ("train.py:50", None, False),
    ],
)
def test_where_no_look_met_the_model_a_library_is_known_by_the_loader_that_it_makes(
    built_at: str, built_by: str | None, is_librarys: bool
) -> None:
    case = fitted()
    [fed] = case.feeding
    made = replace(fed, loader=replace(fed.loader, site=built_at, built_by=built_by))
    summary = replace(case.summary, hot_lines=[BY_LIBRARY])
    finding = only(replace(case, summary=summary, feeding=[made]))
    assert finding.site == "train.py:50"
    assert (finding.evidence["library_at"] is not None) is is_librarys


def test_a_line_of_backward_alone_tells_of_no_library() -> None:
    case = fitted(torch=LIGHTNING)
    lines = [line for line in case.summary.hot_lines if line.part == "backward"]
    assert only(replace(case, summary=replace(case.summary, hot_lines=lines))).site is None


def test_what_is_saved_in_a_librarys_loop_is_not_its_python() -> None:
    """All of a step is called at the one line."""
    case = fitted(BY_LIBRARY, torch=LIGHTNING)
    saving = Checkpoints(saves=4, save_s=0.5, site="train.py:50")
    training = {**case.training, "checkpoint": 0.5}
    told = found(replace(case, checkpoints=saving, training=training))
    assert set(told) == {"python_in_loop", "slow_checkpoints"}


def test_collections_that_the_loop_asks_for_are_told_from_pythons_own() -> None:
    case = case_of(Planted(workers=2, fetch_s=0.002), parts={"gc": 1.0})
    case = replace(
        case,
        summary=replace(case.summary, training=replace(case.summary.training, steps=STEPS)),
    )
    by_itself = only(replace(case, full_collections=4))
    assert "gc.collect() every few hundred steps" in by_itself.advice
    assert "what reference cycles hold" in minded(by_itself)
    line = replace(hot_line("gc"), site="train.py:71")
    at_one = replace(case, full_collections=4, summary=replace(case.summary, hot_lines=[line]))
    assert "where train.py:71 calls gc.collect() itself" in only(at_one).advice
    called = only(replace(case, full_collections=STEPS))
    assert called.advice.startswith("take gc.collect() out")
    assert called.cautions == only(at_one).cautions == []
    # Two walks are no habit: a longer run may have no more.
    assert found(replace(case, full_collections=2)) == []


def looped(name: str = "AdamW", spent_s: float = 1.0) -> TorchSettings:
    one = LoopedOptimizer(name, 120, "train.py:60", spent_s=spent_s)
    return TorchSettings(threads=1, looped=[one])


@pytest.mark.parametrize(
    ("tensors", "is_plain", "at_least"),
    [(4, True, None), (120, True, 1.0), (4, False, 1.05)],
)
def test_plain_sgd_of_few_parameters_has_nothing_to_fuse(
    tensors: int, is_plain: bool, at_least: float | None
) -> None:
    changed = LoopedOptimizer("SGD", tensors, "train.py:60", is_plain, spent_s=1.5)
    healthy = Planted(workers=2, fetch_s=0.002)
    case = case_of(healthy, parts={"optimizer": 1.5}, torch=TorchSettings(looped=[changed]))
    told = [one for one in diagnose(case).findings if one.id == "slow_optimizer"]
    assert bool(told) is (at_least is not None)
    if at_least is not None:
        assert told[0].predicted_speedup is not None
        assert told[0].predicted_speedup[0] == pytest.approx(at_least, abs=0.05)


def with_steps(
    case: Case, backward_s: Any, forward_s: Any = 0.001, *, other_s: Any = 0.0, wall_s: Any = None
) -> Case:
    """Returns a case whose steady steps' backwards, forwards and other code took so long."""
    steady = np.flatnonzero(case.steps.steady.mask)
    if wall_s is not None:
        wall_ns = case.steps.wall_ns.copy()
        wall_ns[steady] = np.resize(np.asarray(wall_s, dtype=float), len(steady)) * 1e9
        case = replace(case, steps=replace(case.steps, wall_ns=wall_ns))
    columns = {}
    for name, took in (("backward", backward_s), ("forward", forward_s), ("other", other_s)):
        column = np.zeros(len(case.steps), dtype=np.int64)
        column[steady] = np.resize(np.asarray(took, dtype=float), len(steady)) * 1e9
        columns[name] = column
    steps = replace(case.steps, per_step={**case.steps.per_step, **columns})
    spent = {name: float(column.sum() / 1e9) for name, column in columns.items()}
    return replace(case, steps=steps, training={**case.training, **spent})


def test_a_backward_that_goes_through_earlier_steps_grows() -> None:
    healthy = case_of(Planted(workers=2, fetch_s=0.002, compute_s=0.03))
    each_epoch = np.linspace(0.002, 0.050, 60)
    finding = only(with_steps(healthy, each_epoch))
    assert finding.id == "growing_backward"
    assert "state.detach()" in finding.advice
    assert finding.evidence["times"] == pytest.approx(44.6 / 6.4, rel=0.15)
    assert finding.is_at_most


def test_on_a_device_whole_steps_have_to_grow_as_well() -> None:
    healthy = case_of(Planted(workers=2, fetch_s=0.002, compute_s=0.03), device="cuda:0")
    longer = np.linspace(0.002, 0.050, STEPS)
    case = with_steps(healthy, longer, wall_s=longer + 0.05)
    [finding] = [one for one in diagnose(case).findings if one.id == "growing_backward"]
    # 26 ms of a step of 76 in the mean are beyond the 50 of the beginning.
    assert finding.recoverable_s == pytest.approx(0.024 * STEPS, rel=0.1)
    assert "growing_backward" not in found(with_steps(healthy, longer, wall_s=0.1))


def test_a_backward_grows_all_the_same_where_the_clock_changes() -> None:
    healthy = case_of(Planted(workers=2, fetch_s=0.002, compute_s=0.03))
    noise = np.random.default_rng(2).uniform(0.9, 1.1, STEPS)
    clock = np.where((np.arange(STEPS) > 80) & (np.arange(STEPS) < 120), 0.7, 1.0)
    finding = only(with_steps(healthy, np.linspace(0.002, 0.050, STEPS) * clock * noise))
    assert finding.id == "growing_backward"


@pytest.mark.parametrize(
    ("backward_s", "forward_s", "other_s"),
    [
        (0.02, 0.001, 0.0),
        (np.linspace(0.015, 0.025, 60), 0.001, 0.0),  # warms up
        (np.linspace(0.002, 0.050, 60), np.linspace(0.001, 0.025, 60), 0.0),  # longer batches
        (np.linspace(0.002, 0.050, 60), 0.001, np.linspace(0.001, 0.025, 60)),  # a bank fills
        (np.random.default_rng(1).uniform(0.002, 0.05, STEPS), 0.001, 0.0),  # by chance
        (np.linspace(0.050, 0.002, 60), 0.001, 0.0),  # gets shorter
        ([0.002] * 9 + [0.05], 0.001, 0.0),  # another loss each tenth step
    ],
)
def test_a_backward_that_differs_otherwise_is_left_alone(
    backward_s: Any, forward_s: Any, other_s: Any
) -> None:
    healthy = case_of(Planted(workers=2, fetch_s=0.002, compute_s=0.03))
    case = with_steps(healthy, backward_s, forward_s, other_s=other_s)
    assert "growing_backward" not in found(case)


def test_an_optimizer_that_could_be_fused() -> None:
    healthy = Planted(workers=2, fetch_s=0.002, compute_s=0.01)
    finding = only(case_of(healthy, parts={"optimizer": 1.0}, torch=looped()))
    assert (finding.id, finding.site, finding.change) == (
        "slow_optimizer",
        "train.py:60",
        {"fused": True},
    )
    # A third of training, of which 0.4 to 0.9 were seen to go.
    low, high = finding.predicted_speedup or (0.0, 0.0)
    assert low == pytest.approx(1 / (1 - 0.4 / 3), rel=0.05)
    assert high == pytest.approx(1 / (1 - 0.9 / 3), rel=0.05)


@pytest.mark.parametrize(
    ("settings", "spent_s"),
    [
        pytest.param(TorchSettings(), 1.0, id="fused, foreach, or no optimizer of torch's"),
        pytest.param(looped("Muon"), 1.0, id="nobody knows what fusing it gives"),
        pytest.param(looped(spent_s=0.2), 0.2, id="a small part"),
        pytest.param(looped(spent_s=0.2), 1.0, id="others, or clipping, take the time"),
    ],
)
def test_an_optimizer_that_is_left_alone(settings: TorchSettings, spent_s: float) -> None:
    healthy = Planted(workers=2, fetch_s=0.002, compute_s=0.01)
    assert found(case_of(healthy, parts={"optimizer": spent_s}, torch=settings)) == []


def several(*optimizers: LoopedOptimizer) -> Case:
    healthy = Planted(workers=2, fetch_s=0.002, compute_s=0.01)
    settings = TorchSettings(looped=list(optimizers), optimizers=len(optimizers))
    return case_of(healthy, parts={"optimizer": 1.0}, torch=settings)


def test_optimizers_that_could_be_fused_are_named_with_all_their_lines() -> None:
    finding = only(
        several(
            LoopedOptimizer("Adam", 30, "gan.py:60", spent_s=0.4),
            LoopedOptimizer("Adam", 50, "gan.py:61", spent_s=0.6),
        )
    )
    assert finding.title.startswith("2 optimizers (Adam) change 80 parameters one by one: 1.00 s,")
    assert finding.site == "gan.py:61"
    assert finding.advice == "torch.optim.Adam(..., fused=True), and so at gan.py:60 (Adam)"
    assert finding.evidence[OTHER_OPTIMIZERS] == ["Adam gan.py:60"]
    alone = only(several(LoopedOptimizer("Adam", 80, "gan.py:61", spent_s=1.0)))
    assert finding.predicted_speedup == pytest.approx(alone.predicted_speedup)


def test_each_optimizer_saves_what_its_class_does() -> None:
    finding = only(
        several(
            LoopedOptimizer("AdamW", 30, "train.py:60", spent_s=0.5),
            LoopedOptimizer("SGD", 30, "train.py:60", spent_s=0.5),
            LoopedOptimizer("Muon", 90, "train.py:62", spent_s=0.9),
        )
    )
    assert finding.title.startswith("AdamW and SGD change 60 parameters one by one: 1.00 s,")
    low, high = finding.predicted_speedup or (0.0, 0.0)
    assert low == pytest.approx(1 / (1 - 0.3 / 3), rel=0.05)
    assert high == pytest.approx(1 / (1 - 0.825 / 3), rel=0.05)


def test_one_that_is_built_for_each_task_is_named_once() -> None:
    tasks = [LoopedOptimizer("Adam", 30, "tasks.py:6", spent_s=0.125) for _ in range(8)]
    finding = only(several(*tasks))
    assert finding.title.startswith("Adam changes 30 parameters one by one: 1.00 s,")
    assert finding.evidence[OTHER_OPTIMIZERS] is None


def test_time_that_is_anothers_is_not_blamed_on_an_optimizer_that_could_be_fused() -> None:
    finding = only(several(LoopedOptimizer("AdamW", 40, "train.py:60", spent_s=0.4)))
    assert finding.evidence["optimizer_s"] == 0.4
    _, high = finding.predicted_speedup or (0.0, 0.0)
    assert high == pytest.approx(1 / (1 - 0.4 * 0.9 / 3), rel=0.05)


def own(tensors: int = 60, optimizers: int = 1, spent_s: float = 1.0) -> TorchSettings:
    one = OwnOptimizer("Lion", tensors, "lion.py:9", spent_s)
    return TorchSettings(own=[one], optimizers=optimizers)


def test_an_optimizer_that_the_script_wrote_with_a_loop() -> None:
    healthy = Planted(workers=2, fetch_s=0.002, compute_s=0.01)
    case = case_of(healthy, parts={"optimizer": 1.0}, torch=own())
    met = replace(hot_line("optimizer"), site="lion.py:14", function="step")
    finding = only(replace(case, summary=replace(case.summary, hot_lines=[met])))
    assert finding.also == ["its line that was met most is lion.py:14 (step)"]
    assert (finding.id, finding.site, finding.change) == ("slow_optimizer", "lion.py:9", {})
    assert finding.title.startswith("Lion, written in the script, changes 60 parameters one by one")
    assert finding.is_at_most
    assert finding.evidence[LIKELY] == pytest.approx(1 / (1 - 0.9 / 3), rel=0.05)


@pytest.mark.parametrize(
    ("settings", "spent_s"),
    [
        pytest.param(own(spent_s=0.1), 0.1, id="a small part"),
        pytest.param(own(spent_s=0.1), 1.0, id="clipping takes the time"),
        pytest.param(own(4), 1.0, id="few parameters"),
        pytest.param(own(12, spent_s=3.0), 3.0, id="large: it is the numbers that take the time"),
        pytest.param(own(optimizers=2), 1.0, id="another one, that may take it"),
    ],
)
def test_an_optimizer_of_the_scripts_that_is_left_alone(
    settings: TorchSettings, spent_s: float
) -> None:
    healthy = Planted(workers=2, fetch_s=0.002, compute_s=0.01)
    assert found(case_of(healthy, parts={"optimizer": spent_s}, torch=settings)) == []


def unused(
    share: float, mixed: float = 0.0, *models: PartOfModel, of_whole_run: bool = True
) -> TorchSettings:
    told = UnusedGradients(12, share, mixed, 62, 9_000, of_whole_run, list(models))
    return TorchSettings(unused=told)


TEACHER = PartOfModel("ResNet", "train.py:41", 62, 62, [""], 0)
BACKBONE = PartOfModel("Net", "train.py:41", 64, 62, ["backbone"], 0)
SCATTERED = PartOfModel("Net", "train.py:41", 64, 40, ["a", "b", "c"], 2)
WITH_BACKWARD = {"backward": 1.0}  # a third of training


@pytest.mark.parametrize(
    ("model", "whose", "frozen"),
    [
        (TEACHER, "all 62 parameters of ResNet, called here,", "that model"),
        (BACKBONE, "backbone in Net, called here (62 of its 64 parameters),", "its backbone"),
        (SCATTERED, "a, b, c and 2 more in Net, called here (40 of its 64", "those parts of it"),
    ],
)
def test_gradients_that_no_optimizer_uses(model: PartOfModel, whose: str, frozen: str) -> None:
    healthy = Planted(workers=2, fetch_s=0.002, compute_s=0.01)
    finding = only(case_of(healthy, parts=WITH_BACKWARD, torch=unused(0.8, 0.0, model, TEACHER)))
    assert (finding.id, finding.site) == ("unused_gradients", "train.py:41")
    assert whose in finding.title
    assert f".requires_grad_(False) on {frozen}, once" in (finding.advice or "")
    assert "62 of the 62 parameters of ResNet" in finding.also[0]
    # 0.8 of a third of training, 0.9 to 1.1 of which were seen to go, and some of forward.
    low, high = finding.predicted_speedup or (0.0, 0.0)
    assert low == pytest.approx(1 / (1 - 0.9 * 0.8 / 3), rel=0.05)
    assert 1 / (1 - 1.1 * 0.8 / 3) < high < 1.75


def test_gradients_beside_those_that_are_used_save_half_at_most() -> None:
    healthy = Planted(workers=2, fetch_s=0.002, compute_s=0.01)
    finding = only(case_of(healthy, parts=WITH_BACKWARD, torch=unused(0.0, 0.9, TEACHER)))
    low, high = finding.predicted_speedup or (0.0, 0.0)
    assert low == pytest.approx(1 / (1 - 0.3 * 0.9 / 3), rel=0.03)
    assert high == pytest.approx(1 / (1 - 0.55 * 0.9 / 3), rel=0.03)


@pytest.mark.parametrize(
    ("settings", "recompute_s", "is_said"),
    [
        ({"is_checkpointing": True}, 0.0, True),
        ({"recomputes_at": ("model.py:30",)}, 0.0, True),
        ({}, 0.2, True),
        ({}, 0.0, False),
    ],
)
def test_what_is_checkpointed_may_learn_nothing_where_what_goes_in_is_frozen(
    settings: dict[str, Any], recompute_s: float, is_said: bool
) -> None:
    healthy = Planted(workers=2, fetch_s=0.002, compute_s=0.01)
    torch = replace(unused(0.8, 0.0, BACKBONE), **settings)
    case = case_of(healthy, parts=WITH_BACKWARD, torch=torch)
    case = replace(case, training=case.training | {"recompute": recompute_s})
    [finding] = [one for one in diagnose(case).findings if one.id == "unused_gradients"]
    assert ("use_reentrant=False first" in finding.cautions[0]) is is_said
    assert len(finding.cautions) == 1 + is_said


def test_unused_gradients_told_with_less_to_go_by() -> None:
    healthy = Planted(workers=2, fetch_s=0.002, compute_s=0.01)
    nameless = only(case_of(healthy, parts=WITH_BACKWARD, torch=unused(0.8)))
    assert nameless.site is None
    assert "the gradients of 62 parameters, which" in nameless.title
    later = unused(0.8, 0.0, TEACHER, of_whole_run=False)
    finding = only(case_of(healthy, parts=WITH_BACKWARD, torch=later))
    assert finding.is_at_most
    assert (finding.predicted_speedup or [0.0])[0] == 1


@pytest.mark.parametrize("told", [TorchSettings(), unused(0.05, 0.02, TEACHER)])
def test_unused_gradients_that_cost_little(told: TorchSettings) -> None:
    healthy = Planted(workers=2, fetch_s=0.002, compute_s=0.01)
    assert found(case_of(healthy, parts=WITH_BACKWARD, torch=told)) == []


GENERATOR = PartOfModel("Generator", "train.py:30", 11, 11, [""], 0)
DISCRIMINATOR = PartOfModel("Discriminator", "train.py:31", 6, 6, [""], 0)
TRUNK = PartOfModel("Net", "train.py:31", 9, 6, ["trunk"], 0)
MANY_PARTS = PartOfModel("Net", "train.py:31", 9, 6, ["a", "b", "c"], 2)
ITS_PASS = DiscardedGradients(
    "train.py:41", None, 8, 0.5, 0.1, False, 11, 9_000, True, [GENERATOR], [DISCRIMINATOR]
)
OTHER_PASS = DiscardedGradients(
    "train.py:47", None, 8, 0.0, 0.2, True, 6, 4_000, True, [DISCRIMINATOR], [GENERATOR]
)


def discarded(*told: DiscardedGradients, is_data_parallel: bool = False) -> Case:
    healthy = Planted(workers=2, fetch_s=0.002, compute_s=0.01)
    settings = TorchSettings(discarded=list(told), is_data_parallel=is_data_parallel)
    return case_of(healthy, parts=WITH_BACKWARD, torch=settings)


def test_gradients_that_are_set_back_before_their_optimizer_steps() -> None:
    finding = only(discarded(ITS_PASS, OTHER_PASS))
    assert (finding.id, finding.site) == ("discarded_gradients", "train.py:41")
    which = "gradients of Generator (called at train.py:30), which are thrown away unused"
    assert f"this backward also computes {which} (zero_grad())" in finding.title
    advice = finding.advice or ""
    inputs = ".backward(inputs=[p for p in model.parameters() if p.requires_grad])"
    of = f"{inputs} with those of Discriminator (called at train.py:31) alone"
    assert advice == f"give this loss what Generator gives with .detach(); or {of}"
    [also] = finding.also
    assert "train.py:47" in also
    assert "that pass needs those of Generator (called at train.py:30) alone, so there " in also
    # Cut off there, the generator would learn nothing.
    frozen = ".requires_grad_(False) on the parameters of Discriminator for this pass"
    assert also.endswith(f"{frozen}, True behind it")
    # 0.5 of a third of training whole, 0.3 of it in part.
    low, high = finding.predicted_speedup or (0.0, 0.0)
    assert low == pytest.approx(1 / (1 - (0.9 * 0.5 + 0.3 * 0.3) / 3), rel=0.03)
    assert high == pytest.approx(1 / (1 - (1.1 * 0.5 + 0.55 * 0.3) / 3), rel=0.03)


def test_passes_that_one_function_begins_are_told_apart_by_who_calls_it() -> None:
    both = (
        replace(one, site="train.py:12", called_from=line)
        for one, line in ((ITS_PASS, "train.py:41"), (OTHER_PASS, "train.py:47"))
    )
    finding = only(discarded(*both))
    assert finding.site == "train.py:12"
    assert "this backward, called from train.py:41, also computes" in finding.title
    assert "so it is at train.py:12, called from train.py:47, with" in finding.also[0]


def test_a_pass_that_goes_through_another_model() -> None:
    advice = only(discarded(replace(OTHER_PASS, mixed_share=0.6))).advice or ""
    frozen = ".requires_grad_(False) on the parameters of Discriminator for this pass"
    assert advice.startswith(f"{frozen}, True behind it; or .backward(inputs=")
    alike = only(discarded(ITS_PASS, replace(ITS_PASS, site="train.py:50"))).also[0]
    assert "so there" not in alike


@pytest.mark.parametrize(
    ("kept", "words"),
    [
        ([], "all that it is to train"),
        (
            [GENERATOR, TRUNK],
            "Generator (called at train.py:30) and trunk in Net (called at train.py:31)",
        ),
        ([GENERATOR, MANY_PARTS], "all that it is to train"),
    ],
)
def test_what_a_pass_is_for_is_named_whole_or_not_at_all(
    kept: list[PartOfModel], words: str
) -> None:
    """Whoever gives it less would train less."""
    advice = only(discarded(replace(ITS_PASS, kept=kept))).advice or ""
    assert advice.endswith(f" if p.requires_grad]) with those of {words} alone")


def test_where_ranks_wait_for_one_another_in_backward_inputs_does_not_work() -> None:
    advice = only(discarded(ITS_PASS, is_data_parallel=True)).advice or ""
    assert "inputs=" not in advice
    assert advice == "give this loss what Generator gives with .detach()"


@pytest.mark.parametrize(
    ("settings", "recompute_s"),
    [({"is_checkpointing": True}, 0.0), ({"recomputes_at": ("model.py:30",)}, 0.0), ({}, 0.2)],
    ids=["by torch", "by a line", "by the ledger"],
)
def test_where_forwards_are_computed_again_inputs_may_not_work(
    settings: dict[str, Any], recompute_s: float
) -> None:
    case = discarded(ITS_PASS)
    training = case.training | {"recompute": recompute_s}
    torch = replace(case.torch, **settings)
    findings = diagnose(replace(case, training=training, torch=torch)).findings
    [advice] = [one.advice or "" for one in findings if one.id == "discarded_gradients"]
    assert "inputs=" not in advice
    assert advice == "give this loss what Generator gives with .detach()"


@pytest.mark.parametrize("clips", [True, False])
def test_clipped_together_discarded_gradients_change_updates(clips: bool) -> None:
    finding = only(replace(discarded(ITS_PASS), clips_gradients=clips))
    assert finding.id == "discarded_gradients"
    assert bool(finding.cautions) is clips
    assert ("in one norm with those that are used" in minded(finding)) is clips


def test_discarded_gradients_told_with_less_to_go_by() -> None:
    nameless = replace(ITS_PASS, site=None, models=[], kept=[], is_of_whole_run=False)
    finding = only(discarded(nameless))
    assert finding.site is None
    assert finding.is_at_most
    assert "gradients of 11 parameters of another optimizer" in finding.title


@pytest.mark.parametrize("told", [[], [replace(ITS_PASS, unused_share=0.03, mixed_share=0.02)]])
def test_discarded_gradients_that_cost_little(told: list[DiscardedGradients]) -> None:
    assert found(discarded(*told)) == []


PENALTY = RarelyUsedGradients("train.py:67", "train.py:87", 16, 96, 0.3)


def rarely_used(*told: RarelyUsedGradients) -> Case:
    healthy = Planted(workers=2, fetch_s=0.002, compute_s=0.01)
    return case_of(healthy, parts={"backward": 1.2}, torch=TorchSettings(rarely_used=list(told)))


def test_gradients_that_few_updates_use() -> None:
    case = rarely_used(PENALTY)
    finding = only(case)
    assert (finding.id, finding.site) == ("rarely_used_gradients", "train.py:67")
    assert "here, called from train.py:87, in 1 of 16 updates" in finding.title
    assert "takes about 360 ms" in finding.title
    # At least those passes, most likely with the forwards that they go back through.
    assert finding.recoverable_s == pytest.approx(2.0 * 0.36)
    assert finding.predicted_speedup is not None
    low, high = finding.predicted_speedup
    assert low == pytest.approx(case.training_s / (case.training_s - 0.9 * 0.36), rel=0.01)
    assert high >= case.training_s / (case.training_s - 2.5 * 0.36)
    assert any("reads their value" in told for told in finding.cautions)


def test_several_such_gradients_are_one_finding() -> None:
    other = RarelyUsedGradients(None, None, 4, 96, 0.1)
    finding = only(rarely_used(PENALTY, other))
    assert "with those below" in finding.title
    assert finding.evidence["unused_s"] == pytest.approx(0.4 * 1.2)
    assert finding.also == ["so it is at another line in 1 of 4 updates"]


@pytest.mark.parametrize("told", [[], [replace(PENALTY, share=0.02)]])
def test_rarely_used_gradients_that_cost_little(told: list[RarelyUsedGradients]) -> None:
    assert found(rarely_used(*told)) == []


def test_rarely_used_gradients_are_read_from_what_was_told() -> None:
    one = {"site": 1, "caller": 0, "period": 16, "updates": 96, "share": 0.3}
    for nonsense in ({"period": 1}, {"period": "x"}, {"period": None}):
        note = {"rarely_used_gradients": [{**one, **nonsense}], "number": 1}
        assert rarely_used_gradients([note], Sites({}, "")) == []
    both = [{**one, "share": 0.1, "period": 4}, one, "x"]
    told = rarely_used_gradients([{"rarely_used_gradients": both, "number": 1}], Sites({}, ""))
    assert [one.period for one in told] == [16, 4]
    assert told[0].called_from is None


SAMPLED = UnusedForwards("train.py:62", "Generator", 12, 0.4, 0.79)


def called_in_vain(*told: UnusedForwards, without_gradients_s: float = 0.0) -> Case:
    healthy = Planted(workers=2, fetch_s=0.002, compute_s=0.01)
    case = case_of(healthy, parts={"forward": 1.5}, torch=TorchSettings(forwards=list(told)))
    training = case.summary.training
    each_s = without_gradients_s / max(training.steps, 1)
    summary = replace(case.summary, training=replace(training, forward_without_grad_s=each_s))
    return replace(case, summary=summary)


def test_a_call_whose_result_nothing_is_learned_from() -> None:
    finding = only(called_in_vain(SAMPLED))
    assert (finding.id, finding.site) == ("unused_forward", "train.py:62")
    assert "what this call of Generator gives, with gradients enabled: about 790 ms" in (
        finding.title
    )
    assert "torch.no_grad()" in (finding.advice or "")
    assert finding.is_at_most
    assert finding.evidence["unused_s"] == pytest.approx(0.79)


def test_several_such_calls_are_one_finding_and_only_forwards_with_gradients_count() -> None:
    other = UnusedForwards(None, "Judge", 8, 0.2, 0.4)
    finding = only(called_in_vain(SAMPLED, other, without_gradients_s=0.5))
    assert finding.evidence["unused_s"] == pytest.approx(0.79 + 0.4)
    assert "with those below" in finding.title
    assert finding.also == ["the same holds for Judge at another line"]
    most = only(called_in_vain(SAMPLED, other, without_gradients_s=1.0))
    assert most.evidence["unused_s"] == pytest.approx(2 - 1.0)


def test_calls_beside_the_model_take_nothing_from_what_is_told() -> None:
    """As those of transforms in a dataset do, which are none of the ledger's forward."""
    finding = only(called_in_vain(replace(SAMPLED, share=0.1)))
    assert finding.evidence["unused_s"] == pytest.approx(0.79)


def test_of_forwards_that_were_compiled_only_what_their_calls_took_counts() -> None:
    finding = only(called_in_vain(replace(SAMPLED, seconds=0.5)))
    assert finding.evidence["unused_s"] == pytest.approx(0.5)


def test_of_a_part_of_the_run_and_of_a_device_the_share_is_told() -> None:
    case = called_in_vain(SAMPLED)
    run = case.summary.run
    part = replace(case, summary=replace(case.summary, run=replace(run, part="epoch 2")))
    device = replace(idle_device({"host_s": 0.1}), seconds={"forward": 1.5}, ran_dry={})
    summary = replace(case.summary, devices=[device], run=replace(run, device="cuda:0"))
    for one, seconds in ((part, 0.4 * 2), (replace(case, summary=summary), 0.4 * 1.5)):
        [finding] = [found for found in diagnose(one).findings if found.id == "unused_forward"]
        assert finding.evidence["unused_s"] == pytest.approx(seconds)


def test_a_call_that_may_make_a_target_is_worth_its_graph_alone() -> None:
    sure, target = (only(called_in_vain(replace(SAMPLED, may_be_target=x))) for x in (False, True))
    assert target.recoverable_s == pytest.approx(0.15 * 0.79)
    assert sure.recoverable_s == pytest.approx(0.5 * 0.79)
    assert target.predicted_speedup == sure.predicted_speedup  # at most all of the call
    assert "call it only" in (sure.advice or "")
    assert "call it only" not in (target.advice or "")
    assert any("call it only" in one for one in target.cautions)
    assert all(any("BatchNorm" in one for one in told.cautions) for told in (sure, target))


@pytest.mark.parametrize("told", [[], [replace(SAMPLED, seconds=0.02)]])
def test_forwards_that_are_learned_from_or_short(told: list[UnusedForwards]) -> None:
    assert found(called_in_vain(*told)) == []


def called_again(*told: RepeatedForwards) -> Case:
    healthy = Planted(workers=2, fetch_s=0.002, compute_s=0.01)
    return case_of(healthy, parts={"forward": 1.5}, torch=TorchSettings(repeats=list(told)))


def test_a_call_for_the_batch_that_was_trained_on() -> None:
    accuracy = RepeatedForwards("train.py:22", "Net", 24, 0.5)
    finding = only(called_again(accuracy, RepeatedForwards(None, "Net", 8, 0.1)))
    assert (finding.id, finding.site) == ("repeated_forward", "train.py:22")
    assert "about 600 ms with those below" in finding.title
    assert finding.recoverable_s == pytest.approx(0.6)
    assert finding.is_at_most
    assert finding.also == ["the same holds for Net at another line"]
    assert any("BatchNorm" in one for one in finding.cautions)


@pytest.mark.parametrize("told", [[], [RepeatedForwards("train.py:22", "Net", 24, 0.05)]])
def test_calls_again_that_take_little(told: list[RepeatedForwards]) -> None:
    assert found(called_again(*told)) == []


GIB = 1 << 30


def recomputing(
    *lines: str, used: int = 2 * GIB, free: int = 16 * GIB, spent_s: float = 0.5, **memory: Any
) -> Case:
    """Two seconds and more of training, a part of it computing forwards again."""
    healthy = Planted(workers=2, fetch_s=0.002, compute_s=0.01)
    torch = TorchSettings(recomputes_at=lines)
    case = case_of(healthy, parts={"recompute": spent_s}, torch=torch)
    told = {"tree_rss_bytes": {"max": used}, "host_available_bytes": {"min": free}, **memory}
    assert case.summary.system is not None
    system = replace(case.summary.system, memory=told)
    return replace(case, summary=replace(case.summary, system=system))


def test_a_forward_that_is_computed_again_though_memory_would_hold_it() -> None:
    finding = only(recomputing("model.py:30"))
    assert (finding.id, finding.site) == ("recomputed_forward", "model.py:30")
    assert "computed again in backward, to save memory: 500 ms" in finding.title
    assert finding.title.endswith("with 2.00 GiB of 18.0 GiB in use at the most")
    assert finding.is_at_most
    assert finding.recoverable_s == pytest.approx(0.5, rel=0.01)
    assert "torch.utils.checkpoint" in finding.advice


def test_where_it_is_asked_for_is_told_of_several_lines() -> None:
    finding = only(recomputing("model.py:30", "model.py:44"))
    assert finding.site is None
    assert finding.also == ["it is asked for at model.py:30 and model.py:44"]
    assert found(recomputing()) == []  # others who call modules in a backward mean to


def test_what_no_line_asks_for_is_told_where_torch_computes_again() -> None:
    case = recomputing()
    finding = only(replace(case, torch=replace(case.torch, is_checkpointing=True)))
    assert (finding.id, finding.site, finding.also) == ("recomputed_forward", None, [])


def test_hugging_faces_trainer_is_told_its_own_argument() -> None:
    case = recomputing("train.py:81")
    loaders = [replace(one, built_by="transformers") for one in case.summary.loaders]
    finding = only(replace(case, summary=replace(case.summary, loaders=loaders)))
    assert finding.advice.startswith("TrainingArguments(..., gradient_checkpointing=False)")


@pytest.mark.parametrize(
    "case",
    [
        recomputing("model.py:30", used=6 * GIB),
        recomputing("model.py:30", host_total_bytes=9 * GIB),
        recomputing("model.py:30", limit_bytes=3 * GIB),
        recomputing("model.py:30", spent_s=0.05),
        recomputing("model.py:30", tree_rss_bytes=None),
    ],
    ids=["too little is free", "memory is shared", "a limit", "little time", "memory is not known"],
)
def test_what_memory_may_not_hold_or_takes_no_time_is_left_alone(case: Case) -> None:
    assert found(case) == []


@pytest.mark.parametrize(
    ("reserved", "is_told"), [(4 * GIB, True), (30 * GIB, False), (None, False)]
)
def test_on_a_device_its_own_memory_counts(reserved: int | None, is_told: bool) -> None:
    told = dict.fromkeys(field.name for field in fields(DeviceMemory))
    told |= {"limit_bytes": 40 * GIB, "peak_reserved_bytes": reserved, "is_peak_sampled": False}
    memory = DeviceMemory(**told)  # type: ignore[arg-type]
    device = replace(
        idle_device({"host_s": 0.1}), memory=memory, seconds={"recompute": 0.6}, ran_dry={}
    )
    case = recomputing("model.py:30", free=GIB)
    run = replace(case.summary.run, device="cuda:0")
    case = replace(case, summary=replace(case.summary, devices=[device], run=run))
    found = [one for one in diagnose(case).findings if one.id == "recomputed_forward"]
    assert bool(found) is is_told
    if found:
        assert found[0].title.endswith("with 4.00 GiB of 40.0 GiB in use at the most")
        assert found[0].evidence["recompute_s"] == 0.6


TABLE = EmbeddingTable("train.py:16", 100_000, 6_400_000, 512, "Adam", is_plain=False)


def with_tables(
    *tables: EmbeddingTable,
    iterations: int = STEPS,
    reads_gradients: bool = False,
    **settings: Any,
) -> Case:
    """A second of training in backward, one in what goes by the 7.1 million numbers."""
    healthy = Planted(workers=2, fetch_s=0.002, compute_s=0.01)
    told = EmbeddingTables(12, 0.6, 7_100_000, list(tables), reads_gradients)
    torch = TorchSettings(tables=told, **settings)
    parts = {"backward": 1.0, "optimizer": 0.8, "zero_grad": 0.2}
    case = case_of(healthy, parts=parts, torch=torch)
    training = replace(case.summary.training, steps=STEPS, iterations=iterations)
    return replace(case, summary=replace(case.summary, training=training))


def test_a_table_that_is_changed_as_a_whole() -> None:
    finding = only(with_tables(TABLE))
    assert (finding.id, finding.site) == ("dense_embeddings", "train.py:16")
    spent_s = 0.6 + 6.4 / 7.1
    assert "all 100,000 rows of an nn.Embedding, of which a batch looks up at most 512" in (
        finding.title
    )
    parts = [finding.evidence[f"{name}_s"] for name in ("backward", "optimizer", "zero_grad")]
    assert sum(parts) == pytest.approx(spent_s)
    # The rows of a batch take some of it still: 0.1 ms a step, 0.2 us a row, and 1.2 ns a number.
    left_s = STEPS * (100e-6 + 512 * (200e-9 + 64 * 1.2e-9))
    assert finding.recoverable_s == pytest.approx(spent_s - left_s, rel=0.01)
    assert finding.is_at_most
    assert "sparse=True), with torch.optim.SparseAdam" in finding.advice
    assert "training goes another way" in finding.cautions[0]


@pytest.mark.parametrize(
    ("is_plain", "is_lightning", "is_told"),
    [(False, True, True), (False, False, False), (True, True, False)],
)
def test_lightning_takes_no_second_optimizer(
    is_plain: bool, is_lightning: bool, is_told: bool
) -> None:
    table = replace(TABLE, optimizer="Adagrad", is_plain=is_plain)
    cautions = only(with_tables(table, trains_by_lightning=is_lightning)).cautions
    assert any("Lightning's Trainer" in one for one in cautions) is is_told


def test_sgd_gains_where_more_rows_are_looked_up() -> None:
    many = replace(TABLE, indices=45_000, optimizer="SGD", is_plain=True)
    assert only(with_tables(many)).evidence["looked_up_share"] == 0.45
    assert found(with_tables(replace(many, indices=60_000))) == []
    for others in (replace(many, is_plain=False), replace(many, optimizer="Adagrad")):
        assert found(with_tables(others)) == []


def test_of_several_tables_those_that_are_looked_up_wholly_are_left_out() -> None:
    other = replace(TABLE, site="train.py:17", rows=50_000, numbers=3_200_000)
    small = replace(TABLE, rows=1_000, numbers=100_000)
    finding = only(with_tables(TABLE, other, small))
    assert "all rows of 2 nn.Embedding (100,000 and 50,000)" in finding.title
    assert finding.also == ["the same holds for the one that train.py:17 builds"]
    # Of what backward does for tables, those have 9.6 of 9.7 parts.
    assert finding.evidence["backward_s"] == pytest.approx(0.6 * 9.6 / 9.7)


@pytest.mark.parametrize(
    ("name", "is_plain", "words", "cautions"),
    [
        ("SGD", True, "SGD then changes the rows of the batch alone", 1),
        ("RMSprop", False, "SparseAdam, Adagrad, or SGD without momentum", 2),
    ],
)
def test_what_is_advised_goes_by_the_optimizer(
    name: str, is_plain: bool, words: str, cautions: int
) -> None:
    finding = only(with_tables(replace(TABLE, optimizer=name, is_plain=is_plain)))
    assert words in finding.advice
    assert len(finding.cautions) == cautions


@pytest.mark.parametrize(
    "healthy",
    [
        with_tables(),
        with_tables(replace(TABLE, indices=20_000)),
        with_tables(replace(TABLE, indices=3_000), iterations=4 * STEPS),
        with_tables(TABLE, is_data_parallel=True),
        replace(with_tables(TABLE), clips_gradients=True),
        with_tables(TABLE, reads_gradients=True),
        case_of(
            Planted(workers=2, fetch_s=0.002, compute_s=0.01),
            torch=TorchSettings(tables=EmbeddingTables(12, 0.01, 7_100_000, tables=[TABLE])),
        ),
    ],
    ids=[
        "none",
        "most rows",
        "most rows over four batches",
        "ranks",
        "clipped",
        "the script reads gradients",
        "that takes no time",
    ],
)
def test_tables_that_are_no_fault(healthy: Case) -> None:
    assert found(healthy) == []


def test_a_table_and_its_optimizer_are_not_saved_twice() -> None:
    looped = [LoopedOptimizer("Adam", 6, "train.py:33", spent_s=1.0)]
    case = with_tables(TABLE, looped=looped)
    findings = diagnose(case).findings
    assert [one.id for one in findings] == ["dense_embeddings", "slow_optimizer"]
    alone = findings[0].predicted_speedup
    assert alone is not None
    assert together(case, findings) == pytest.approx(alone[1], rel=0.05)


def late(rank: int, phase: str, seconds: float) -> dict[str, Any]:
    return {"rank": rank, "phase": phase, "share_of_steps": 0.5, "seconds": seconds}


def ranks(*rows: dict[str, Any], rank: int = 1, **changes: Any) -> Case:
    """Two seconds and more of training; the case is that of one rank."""
    healthy = Planted(workers=2, fetch_s=0.002, compute_s=0.01)
    case = case_of(healthy, stragglers=list(rows), **changes)
    run = replace(case.summary.run, world_size=2, rank=rank)
    return replace(case, summary=replace(case.summary, run=run, hot_lines=[hot_line("other")]))


@pytest.mark.parametrize(
    ("phases", "site", "words"),
    [
        (("data_wait", "first_batch"), "data.py:31", "longer at loading its batches: 600 ms"),
        (("checkpoint",), "train.py:70", "longer at saving and loading checkpoints"),
        (("other",), "data.py:12", "longer at Python code between the parts of a step"),
        (("evaluation",), None, "longer at evaluating"),
    ],
)
def test_a_rank_that_the_others_wait_for(
    phases: tuple[str, ...], site: str | None, words: str
) -> None:
    case = ranks(*(late(1, phase, 0.6 / len(phases)) for phase in phases))
    finding = only(case)
    assert (finding.id, finding.is_at_most) == ("slow_rank", True)
    assert finding.site == (case.feeding[0].loader.site if "data_wait" in phases else site)
    assert finding.title.startswith("rank 1 is longer at ")
    assert finding.title.endswith("; the other rank waits for it meanwhile")
    of_four = replace(case.summary.run, world_size=4)
    four = replace(case, summary=replace(case.summary, run=of_four))
    assert only(four).title.endswith("; the other ranks wait for it meanwhile")
    assert words in finding.title
    assert finding.recoverable_s == pytest.approx(0.6)


@pytest.mark.parametrize("called_at", ["train.py:62", None])
def test_a_rank_that_evaluates_alone(called_at: str | None) -> None:
    """`if rank == 0: evaluate()`: not where its loader is built, and not too long by itself."""
    case = ranks(late(1, "evaluation", 0.6))
    sites = {"train.py:50": 0.2, "train.py:51": 0.5}
    loaders = [
        replace(
            Planted(role="evaluation").loader, site=site, evaluation_s=spent_s, called_at=called_at
        )
        for site, spent_s in sites.items()
    ]
    [fed] = case.feeding
    case = replace(case, evaluating=[replace(fed, loader=one) for one in loaders])
    finding = next(one for one in diagnose(case).findings if one.id == "slow_rank")
    assert finding.site == (called_at or "train.py:51")
    assert finding.advice.startswith("let all ranks share it")
    assert "twice" in finding.cautions[0]
    in_turn = replace(
        case.summary, stragglers=[late(1, "evaluation", 0.4), late(0, "evaluation", 0.3)]
    )
    finding = only(replace(case, summary=in_turn))
    assert (finding.advice, finding.cautions) == ("do it less often", [])


def test_a_rank_that_evaluates_alone_over_no_loader() -> None:
    case = ranks(late(1, "evaluation", 0.6))
    lines = [replace(hot_line("evaluation"), site="rollout.py:9", called_from=["train.py:62"])]
    lines.append(replace(hot_line("forward"), site="model.py:3"))
    finding = only(replace(case, summary=replace(case.summary, hot_lines=lines)))
    assert finding.site == "train.py:62"


def test_what_one_rank_computes_longer_others_take_over() -> None:
    case = ranks(late(1, "forward", 0.6))
    finding = only(case)
    assert finding.site is None
    assert "its core" not in finding.title
    assert "a core that is slower" in finding.cautions[0]
    assert "rank 1 is longer at computing, forward and backward: 600 ms" in finding.title
    assert "order[rank::world_size]" in finding.advice
    # Of two ranks each would compute a half of it.
    assert finding.recoverable_s == pytest.approx(0.3)
    passes_on = [Collective("train.py:30", "send", 60, 0.01)]
    stages = replace(case, summary=replace(case.summary, collectives=passes_on))
    assert found(stages) == []


def test_ranks_that_wait_for_one_another_in_turn() -> None:
    finding = only(ranks(late(1, "data_wait", 0.4), late(0, "data_wait", 0.3)))
    assert finding.title.startswith("ranks wait in turn for one that is longer at loading")
    assert finding.recoverable_s == pytest.approx(0.7)


@pytest.mark.parametrize(("cores", "are_told"), [(4.0, True), (2.0, False)])
def test_ranks_without_a_core_are_late_in_turn(cores: float, are_told: bool) -> None:
    system = summaries.system(cpu={"cores_usable": cores, "ranks": 4})
    both = (late(1, "data_wait", 0.4), late(0, "data_wait", 0.3))
    assert ("slow_rank" in found(ranks(*both, system=system))) is are_told
    # What one alone does is its own, whatever the cores are.
    finding = only(ranks(late(1, "data_wait", 0.6), system=system))
    assert finding.id == "slow_rank"
    assert any("more ranks than cores" in one for one in finding.cautions) is not are_told


def test_what_ranks_hardly_wait_for_is_no_finding() -> None:
    assert found(ranks(late(1, "data_wait", 0.05))) == []
    assert found(ranks()) == []


def test_what_is_found_of_the_late_rank_by_itself_stands_with_it() -> None:
    case = case_of(Planted(workers=0, fetch_s=0.01, compute_s=0.01))
    (own,) = diagnose(case).findings
    run = replace(case.summary.run, world_size=2, rank=1)
    rows = [late(1, "data_wait", 0.9)]
    told = replace(case.summary, run=run, findings=[own], stragglers=rows)
    finding = next(x for x in diagnose(replace(case, summary=told)).findings if x.id == "slow_rank")
    (also,) = finding.also
    assert also == f"of rank 1 by itself: {own.title}: {own.advice}"


def compiled(again: int, again_s: float, versions: int = 4) -> Compilation:
    return Compilation("train.py:50", again + 2, again_s + 3.0, again, again_s, versions)


def recompiled(*told: Compilation) -> Case:
    case = case_of(Planted(workers=2, fetch_s=0.002, compute_s=0.02))
    return replace(case, summary=replace(case.summary, compilations=list(told)))


def test_code_that_is_compiled_again_and_again() -> None:
    case = recompiled(compiled(1, 0.2), replace(compiled(3, 1.3), site="train.py:60"))
    finding = only(case)
    assert (finding.id, finding.site, finding.is_at_most) == ("recompiling", "train.py:60", True)
    assert finding.recoverable_s == pytest.approx(1.5)
    assert finding.evidence["again"] == 4
    assert finding.advice.startswith("torch.compile(..., dynamic=True), or one shape for all")
    [caution] = finding.cautions
    assert "not where a model is evaluated" in caution
    assert "padded places have to be masked" in caution
    assert finding.also == []
    assert finding.evidence[LIKELY] == pytest.approx(1 / (1 - 1.5 / case.training_s))
    [finding] = diagnose(recompiled(compiled(7, 1.5, versions=8))).findings
    assert "runs it uncompiled" in finding.also[0]


@pytest.mark.parametrize(
    "told",
    [
        pytest.param([compiled(0, 0.0)], id="once"),
        pytest.param([compiled(2, 0.15)], id="a small part"),
        pytest.param([], id="nothing"),
    ],
)
def test_compiling_that_is_no_fault(told: list[Compilation]) -> None:
    assert found(recompiled(*told)) == []


def test_anomaly_detection_comes_first_for_it_slows_what_else_is_measured() -> None:
    planted = Planted(fetch_s=0.03, compute_s=0.01)
    on = TorchSettings(detects_anomalies=True)
    told = diagnose(case_of(planted, torch=on)).findings
    assert [one.id for one in told] == ["anomaly_detection", "serial_loading"]
    assert told[0].predicted_speedup is None
    assert told[0].recoverable_s is None
    off = TorchSettings(detects_anomalies=False)
    assert found(case_of(planted, torch=off)) == ["serial_loading"]


BESIDE = CompetingThread("writer.py:29", "run", 0.7, 0.8, 0.4, 60)


def test_a_thread_that_holds_the_interpreter_comes_first() -> None:
    healthy = case_of(Planted(workers=2, fetch_s=0.002, compute_s=0.01))
    finding = only(replace(healthy, summary=replace(healthy.summary, competing=BESIDE)))
    assert (finding.id, finding.site) == ("competing_thread", "writer.py:29")
    assert "writer.py:29 (run), runs for 70 % of training" in finding.title
    assert "kept from running for about 800 ms, 40 % of it" in finding.title
    assert finding.predicted_speedup is None
    serial = case_of(Planted(fetch_s=0.03, compute_s=0.01))
    told = diagnose(replace(serial, summary=replace(serial.summary, competing=BESIDE))).findings
    assert [one.id for one in told] == ["competing_thread", "serial_loading"]


@pytest.mark.parametrize(("kept_s", "is_why"), [(0.8, True), (0.1, False)])
def test_a_thread_is_why_only_where_it_cost_as_much(kept_s: float, is_why: bool) -> None:
    case = case_of(Planted(workers=2, fetch_s=0.002, compute_s=0.01), parts={"other": 1.0})
    beside = replace(BESIDE, kept_s=kept_s)
    summary = replace(case.summary, competing=beside, hot_lines=[hot_line("other")])
    told = diagnose(replace(case, summary=summary)).findings
    assert [one.id for one in told] == ["competing_thread", "python_in_loop"][: 1 if is_why else 2]
    assert any("it may be why Python code" in one for one in told[0].also) is is_why


@pytest.mark.parametrize(
    "changes",
    [
        {"kept_share": 0.05},  # it computes where others may run, NumPy say
        {"at_work_share": 0.1},
        {"site": None},
    ],
)
def test_a_thread_that_does_not_keep_training_from_running(changes: dict[str, Any]) -> None:
    case = case_of(Planted(workers=2, fetch_s=0.002, compute_s=0.01))
    beside = replace(BESIDE, **changes)
    assert found(replace(case, summary=replace(case.summary, competing=beside))) == []


DOUBLE = TorchSettings(numerics=Numerics("float64", "unknown"))


def test_a_model_in_double_precision() -> None:
    finding = only(case_of(Planted(workers=2, fetch_s=0.002, compute_s=0.01), torch=DOUBLE))
    assert finding.id == "double_precision"
    assert finding.title.startswith("the model computes in float64: ")
    assert finding.predicted_speedup is not None
    low, high = finding.predicted_speedup
    assert low == 1
    assert 1.5 < high < 2.5
    assert finding.cautions[0].startswith("the numbers change")
    assert finding.site is None
    for places, site, also in (
        (["train.py:9"], "train.py:9", []),
        (["train.py:9", "data.py:4"], None, ["it may be made so by train.py:9 or data.py:4"]),
    ):
        known = TorchSettings(numerics=Numerics("float64", "unknown", places))
        finding = only(case_of(Planted(workers=2, fetch_s=0.002, compute_s=0.01), torch=known))
        assert (finding.site, finding.also) == (site, also)
    single = TorchSettings(numerics=Numerics("float32", "unknown"))
    meant = replace(DOUBLE, decomposes_in_float64=True)
    for healthy in (single, meant):
        case = case_of(Planted(workers=2, fetch_s=0.002, compute_s=0.01), torch=healthy)
        assert found(case) == []


def test_what_float32_changes_is_minded_on_a_device_too() -> None:
    case = on_device(case_of(Planted(workers=2, fetch_s=0.002, compute_s=0.01), torch=DOUBLE))
    case = replace(case, summary=replace(case.summary, devices=[idle_device({})]))
    [finding] = [one for one in diagnose(case).findings if one.id == "double_precision"]
    assert finding.cautions == [
        "the numbers change from the seventh digit on: not where double is meant"
    ]
    assert finding.also == ["what it costs only a rerun tells"]


def test_convolutions_in_double_precision_may_gain_more() -> None:
    """torch has its fast ones for float32 alone."""
    healthy = Planted(workers=2, fetch_s=0.002, compute_s=0.01)
    plain = only(case_of(healthy, torch=DOUBLE))
    finding = only(case_of(healthy, torch=replace(DOUBLE, convolves_in_float64=True)))
    assert plain.predicted_speedup is not None
    assert finding.predicted_speedup is not None
    low, high = finding.predicted_speedup
    assert low == 1
    # A batch takes the two workers 1 ms, whatever the model does.
    assert high > 3 * plain.predicted_speedup[1]
    assert finding.is_at_most
    part = finding.evidence["computing_share"]
    assert (plain.recoverable_s, finding.recoverable_s) == (
        pytest.approx(0.5 * part * 2, rel=0.1),
        pytest.approx(0.75 * part * 2, rel=0.1),
    )


@pytest.mark.parametrize(
    ("operators_s", "optimizers_s", "looks", "saved_s"),
    [
        (0.0004, 0.0, 3, 9.5 / 4),  # of backward as large a share as of forward
        (0.0, 0.002, 3, 2.5),  # no more than what updating takes
        (0.0004, 0.001, 1, 9.5 / 4 + 2.5 / 2),
        (0.00002, 0.0001, 3, None),
    ],
)
def test_denormal_numbers(
    operators_s: float, optimizers_s: float, looks: int, saved_s: float | None
) -> None:
    told = TinyNumbers(looks, 0, operators_s, optimizers_s, 0.3, "train.py:12")
    # Of 1,250 steps: forward takes 1.6 ms of each, backward 6 ms, the optimizer 2 ms.
    computing = {"backward": 7.5, "optimizer": 2.5}
    case = case_of(parts=computing, torch=TorchSettings(tiny_numbers=told))
    if saved_s is None:
        assert found(case) == []
        return
    finding = only(case)
    assert (finding.id, finding.site) == ("tiny_numbers", "train.py:12")
    assert finding.recoverable_s == pytest.approx(saved_s, rel=0.01)
    assert "set_flush_denormal(True)" in finding.advice
    assert finding.predicted_speedup is not None
    assert finding.predicted_speedup[0] == 1
    assert ("the optimizer" in finding.title) is (optimizers_s > 0)


def test_denormal_numbers_cost_nothing_before_there_were_any() -> None:
    told = TinyNumbers(3, 625, 0.0004, 0.0, 0.3, "train.py:12")
    finding = only(case_of(parts={"backward": 7.5}, torch=TorchSettings(tiny_numbers=told)))
    assert finding.recoverable_s == pytest.approx(9.5 / 8, rel=0.01)


def test_nearly_all_of_computing_may_go_for_denormal_numbers() -> None:
    """As in a net of convolutions that took 446 ms a step, and 22 ms without such numbers."""
    told = TinyNumbers(1, 0, 0.0018, 0.0, 0.6, "train.py:12", 0.0001, 0.0002)
    case = case_of(parts={"backward": 7.5}, torch=TorchSettings(tiny_numbers=told))
    finding = only(case)
    # Of 1,250 steps: forward takes 1.6 ms of each, backward 6 ms.
    assert finding.recoverable_s == pytest.approx(9.5 * 18 / 19, rel=0.01)
    without = replace(told, forward_kept_s=0.0, backward_kept_s=0.0)
    older = only(replace(case, torch=TorchSettings(tiny_numbers=without)))
    assert finding.predicted_speedup is not None
    assert older.predicted_speedup is not None
    most = case.training_s / (case.training_s - 9.5 + 1_052 * 0.00015)
    assert most * 0.95 < finding.predicted_speedup[1] < older.predicted_speedup[1]


def test_what_operators_take_without_denormal_numbers_is_never_gained() -> None:
    """Of what costs a quarter of forward two and a half times as much may go, elsewhere too."""
    told = TinyNumbers(3, 0, 0.0005, 0.0, 0.3, "train.py:12")
    for kept_s, is_less in ((0.0001, False), (0.0011, True)):
        known = replace(told, forward_kept_s=kept_s, backward_kept_s=4 * kept_s)
        plain, finding = (
            only(case_of(parts={"backward": 7.5}, torch=TorchSettings(tiny_numbers=one)))
            for one in (told, known)
        )
        assert plain.predicted_speedup is not None
        assert finding.predicted_speedup is not None
        assert (finding.predicted_speedup[1] < plain.predicted_speedup[1]) is is_less


def test_operators_that_took_longer_alone_than_in_their_place() -> None:
    told = TinyNumbers(3, 0, 0.0016, 0.0, 0.3, "train.py:12", 0.0016)
    finding = only(case_of(parts={"backward": 7.5}, torch=TorchSettings(tiny_numbers=told)))
    assert finding.recoverable_s == pytest.approx(9.5 / 2, rel=0.01)


@pytest.mark.parametrize(
    ("gradients_s", "kept_s", "saved_s", "most_s"),
    [
        (0.002, 0.0, 2.5, 5.0),
        (0.004, 0.001, 5.0, 7.5 - 0.6),  # at most what backward takes without them stays, or half
        (0.02, 0.005, 6.0, 7.5 - 0.75),  # alone they took longer than in their place
        (0.0002, 0.0, None, 0.0),
    ],
)
def test_denormal_numbers_among_gradients(
    gradients_s: float, kept_s: float, saved_s: float | None, most_s: float
) -> None:
    of_gradients = {"gradients_s": gradients_s, "gradients_kept_s": kept_s}
    told = TinyNumbers(
        3, 0, 0.0, 0.0, 0.0, None, **of_gradients, gradients_share=0.4, gradients_site="train.py:9"
    )
    # Of 1,250 steps: backward takes 6 ms of each.
    case = case_of(parts={"backward": 7.5}, torch=TorchSettings(tiny_numbers=told))
    if saved_s is None:
        assert found(case) == []
        return
    finding = only(case)
    assert (finding.id, finding.site) == ("tiny_numbers", "train.py:9")
    assert finding.recoverable_s == pytest.approx(saved_s, rel=0.01)
    assert finding.title.startswith("backward, whose gradients vanish on their way back, computes")
    assert "up to 40 % of those in a tensor" in finding.title
    assert "fewer steps back" in finding.advice
    assert finding.run_speedup is not None
    most = case.wall_s / (case.wall_s - most_s)
    assert finding.run_speedup == pytest.approx([1, most], rel=0.01)


def test_of_a_backward_that_denormal_operands_slow_too_it_counts_once() -> None:
    told = TinyNumbers(3, 0, 0.0004, 0.0, 0.3, "train.py:12")
    for gradients_s, saved_s in ((0.001, 9.5 / 4), (0.004, 0.5 + 5.0)):
        both = replace(told, gradients_s=gradients_s)
        case = case_of(parts={"backward": 7.5}, torch=TorchSettings(tiny_numbers=both))
        finding = only(case)
        assert finding.site == "train.py:12"
        assert finding.recoverable_s == pytest.approx(saved_s, rel=0.01)
        assert finding.title.startswith("operators of the model compute")


def test_what_is_told_of_gradients_is_of_one_look() -> None:
    told = {
        "looks": 2,
        "gradients_ns": 4_000_000,
        "gradients_kept_ns": 1_000_000,
        "gradients_looks": 4,
        "gradients_share": 0.4,
    }
    read = tiny_numbers([{"tiny_numbers": told}], Sites({}, "/work"))
    assert read is not None
    assert (read.gradients_s, read.gradients_kept_s) == (0.001, 0.00025)
    assert (read.gradients_share, read.gradients_site) == (0.4, None)


@pytest.mark.parametrize("told", [{}, {"looks": 0}, {"looks": "x", "operators_ns": 5}, 7])
def test_denormal_numbers_that_nobody_tells_of(told: Any) -> None:
    assert tiny_numbers([{"tiny_numbers": told, "number": 1}], Sites({}, "/work")) is None


@pytest.mark.parametrize(
    ("threads", "there", "cores", "expected"),
    [
        (16, 40, 2.0, ["torch_threads"]),
        (16, 5, 2.0, []),  # so many were never needed
        (2, 9, 2.0, []),
        (2, 9, 1.5, []),  # a quota of a core and a half
        (None, 9, 2.0, []),
    ],
)
def test_more_threads_than_cores(
    threads: int | None, there: int, cores: float, expected: list[str]
) -> None:
    case = case_of(
        Planted(workers=2, fetch_s=0.002, compute_s=0.01), torch=TorchSettings(threads=threads)
    )
    assert case.summary.system is not None
    system = replace(
        case.summary.system,
        cpu=case.summary.system.cpu | {"cores_usable": cores},
        processes=[{"role": "main", "threads": there}],
    )
    assert found(replace(case, summary=replace(case.summary, system=system))) == expected


def test_how_many_threads_are_advised_goes_by_cores_not_hyper_threads() -> None:
    case = case_of(
        Planted(workers=2, fetch_s=0.002, compute_s=0.01), torch=TorchSettings(threads=16)
    )
    assert case.summary.system is not None
    cpu = case.summary.system.cpu | {"cores_usable": 8.0, "cores_physical": 4.0}
    system = replace(case.summary.system, cpu=cpu, processes=[{"role": "main", "threads": 20}])
    known = replace(case, summary=replace(case.summary, system=system))
    finding = only(known)
    assert finding.title.startswith("torch computes with 16 threads on 4 cores (8 hyper-threads):")
    assert finding.advice == "torch.set_num_threads(4), or OMP_NUM_THREADS=4"
    # Each hyper-thread runs one: what that costs is not known.
    assert found(replace(known, torch=TorchSettings(threads=8))) == []


def on_cores(
    case: Case,
    cores: float,
    own: float = 1.0,
    all_busy: float = 1.0,
    physical: float | None = None,
) -> Case:
    """Returns a case of a machine of eight cores, or hyper-threads.

    Args:
        case: Of the run.
        cores: That it may use.
        own: Cores that it keeps busy.
        all_busy: That all programs do.
        physical: Of `cores`, hyper-threads of one counted once; None: not told, as of old runs.
    """
    assert case.summary.system is not None
    cpu = {
        "cores_usable": cores,
        "cores_physical": physical,
        "per_core_percent": [0.0] * 8,
        "host_percent": {"mean": 100 * all_busy / 8},
        "tree_percent": {"mean": 100 * own},
    }
    system = replace(case.summary.system, cpu=cpu)
    return replace(case, summary=replace(case.summary, system=system))


# An operator of the backward takes 1 ms of the 10.
ONE_THREAD = TorchSettings(threads=1, optimizers=1, backward_nodes=10)
COMPUTES: dict[str, Any] = {"parts": {"backward": 10e-3 * STEPS}}


def test_one_thread_beside_cores_that_have_nothing_to_do() -> None:
    planted = Planted(fetch_s=0.0001, compute_s=0.005)
    finding = only(on_cores(case_of(planted, torch=ONE_THREAD, **COMPUTES), 4.0))
    assert (finding.id, finding.site, finding.change) == ("few_threads", None, {})
    assert "torch.set_num_threads(4)" in finding.advice
    assert finding.is_at_most
    # 15 of the 15.1 ms of a step at a quarter.
    assert finding.evidence[LIKELY] == pytest.approx(15.1 / 3.85, rel=0.05)
    assert finding.evidence["operator_s"] == pytest.approx(0.001)


@pytest.mark.parametrize(("backwards", "is_found"), [(4, True), (6, False)])
def test_each_of_several_backwards_of_a_step_has_operators_of_its_own(
    backwards: int, is_found: bool
) -> None:
    planted = Planted(fetch_s=0.0001, compute_s=0.005)
    case = case_of(planted, torch=ONE_THREAD, backwards=backwards * STEPS, **COMPUTES)
    assert ("few_threads" in found(on_cores(case, 4.0))) is is_found


def test_the_line_that_sets_too_few_threads_is_named() -> None:
    planted = Planted(fetch_s=0.0001, compute_s=0.005)
    settings = replace(ONE_THREAD, threads_set_at="train.py:2")
    finding = only(on_cores(case_of(planted, torch=settings, **COMPUTES), 4.0))
    assert (finding.id, finding.site) == ("few_threads", "train.py:2")
    assert finding.advice.startswith("4 threads at train.py:2, or take that line out;")


def test_more_threads_and_less_python_give_more_than_either() -> None:
    """It is ranked by half of what cores that share all of it would save, which is the most."""
    planted = Planted(fetch_s=0.0001, compute_s=0.005)
    parts = {"backward": 10e-3 * STEPS, "other": 5e-3 * STEPS}
    case = on_cores(case_of(planted, torch=ONE_THREAD, parts=parts), 4.0)
    told = diagnose(case).findings
    assert [one.id for one in told] == ["few_threads", "python_in_loop"]
    everything = together(case, told)
    assert everything is not None
    # Of 20 ms a step 5 go, and a quarter of the other 15 is left.
    assert everything == pytest.approx(20.1 / (0.1 + 15 / 4), rel=0.15)


@pytest.mark.parametrize(
    ("settings", "where"),
    [
        pytest.param({"threads": 4}, {}, id="as many as cores"),
        pytest.param({"threads": 3}, {}, id="one less"),
        pytest.param({"threads": None}, {}, id="not known"),
        pytest.param({"backward_nodes": 1_000}, {}, id="small operators"),
        pytest.param({"backward_nodes": None}, {}, id="operators that nobody has counted"),
        pytest.param({"optimizers": 2}, {}, id="passes of several graphs"),
        pytest.param({"cores_allotted": 1}, {}, id="a batch system gave it one core"),
        pytest.param({"is_data_parallel": True}, {}, id="ranks share the cores"),
        pytest.param({}, {"cores": 1.0}, id="one core"),
        pytest.param({}, {"all_busy": 4.0}, id="others have them"),
    ],
)
def test_threads_that_are_as_many_as_they_should_be(
    settings: dict[str, Any], where: dict[str, float]
) -> None:
    torch = replace(ONE_THREAD, **settings)
    case = case_of(Planted(fetch_s=0.0001, compute_s=0.005), torch=torch, **COMPUTES)
    assert found(on_cores(case, **{"cores": 4.0, **where})) == []


def test_hyper_threads_are_no_cores_that_have_nothing_to_do() -> None:
    planted = Planted(fetch_s=0.0001, compute_s=0.005)
    case = on_cores(case_of(planted, torch=ONE_THREAD, **COMPUTES), 8.0, physical=4.0)
    finding = only(case)
    assert finding.id == "few_threads"
    assert "with 1 thread, and 4 cores are there" in finding.title
    assert "torch.set_num_threads(4)" in finding.advice
    assert finding.evidence[LIKELY] == pytest.approx(15.1 / 3.85, rel=0.05)


@pytest.mark.parametrize("physical", [4.0, None])
def test_as_many_threads_as_torch_takes_by_itself_are_not_few(physical: float | None) -> None:
    torch = replace(ONE_THREAD, threads=4)
    case = case_of(Planted(fetch_s=0.0001, compute_s=0.005), torch=torch, **COMPUTES)
    assert found(on_cores(case, 8.0, physical=physical)) == []
    assert found(on_cores(case, 8.0, physical=8.0)) == ["few_threads"]


def test_cores_that_workers_keep_busy_are_not_free() -> None:
    planted = Planted(workers=3, fetch_s=0.03, running=1.0, compute_s=0.005, cores=4)
    case = on_cores(case_of(planted, torch=ONE_THREAD, **COMPUTES), 4.0, own=4.0, all_busy=4.0)
    assert "few_threads" not in found(case)


def test_where_a_device_computes_the_hosts_threads_are_no_matter() -> None:
    planted = Planted(fetch_s=0.0001, compute_s=0.005)
    case = on_cores(case_of(planted, torch=ONE_THREAD, device="cuda:0", **COMPUTES), 4.0)
    assert "few_threads" not in found(case)


def test_cores_full_of_waiting_threads_are_no_matter_of_the_samples() -> None:
    planted = Planted(workers=2, fetch_s=0.05, running=1.0, compute_s=0.02, cores=2)
    alone = case_of(planted)
    assert found(alone) == ["saturated_cpu"]
    assert alone.summary.system is not None
    system = replace(
        alone.summary.system,
        cpu=alone.summary.system.cpu | {"cores_usable": 2},
        processes=[{"role": "main", "threads": 20}],
    )
    crowded = replace(
        alone,
        summary=replace(alone.summary, system=system),
        torch=TorchSettings(threads=16),
    )
    finding = only(crowded)
    assert finding.id == "torch_threads"
    assert finding.also[-1].startswith("it may be why making batches needs more of the CPU")


@pytest.mark.parametrize("low", [0.6, 1.2])
def test_workers_that_may_not_help_are_no_cure_for_too_many_threads(low: float) -> None:
    case = case_of(Planted(fetch_s=0.01, compute_s=0.01))
    (serial,) = diagnose(case).findings
    threads = replace(serial, id="torch_threads", change={}, predicted_speedup=None)
    told, _ = _without_symptoms([replace(serial, predicted_speedup=[low, 1.7]), threads])
    assert ("serial_loading" in [one.id for one in told]) == (low > 1)


def test_workers_that_may_cost_more_than_they_gain_are_not_advised() -> None:
    # A batch takes a tenth of a step, and to hand it over may take longer than to make it.
    unsure = {"receive_s": Interval(0.0004, 0.0008, 0.006), "delivery_s": 0.0008}
    planted = Planted(fetch_s=0.0017, running=1.0, compute_s=0.011, cores=2, **unsure)
    assert found(case_of(planted)) == []
    sure = Planted(fetch_s=0.0017, running=0.0, compute_s=0.011, cores=2)
    assert found(case_of(sure)) == ["serial_loading"]


def test_drawing_indices_is_found_beside_what_handing_over_costs_anyway() -> None:
    handed_over = {"receive_s": Interval.exactly(0.003), "delivery_s": 0.003}
    planted = Planted(workers=2, fetch_s=0.002, compute_s=0.01, sampler_s=0.0015, **handed_over)
    assert found(case_of(planted)) == ["slow_sampler"]
    quick = Planted(workers=2, fetch_s=0.002, compute_s=0.01, sampler_s=0.0001, **handed_over)
    assert found(case_of(quick)) == []
