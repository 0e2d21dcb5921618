"""More workers, or cheaper samples: what is advised to a loop that waits for its batches."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.cases import Planted, case_of
from support.found import found, hot_line, only

from trainprof.analysis.loading.loader_builder import builder_of
from trainprof.analysis.pipeline.bounds import Interval
from trainprof.analysis.summary.finding import LIKELY, MODELLED_WORKERS
from trainprof.report.text.gain_words import speedup_words


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
    ("package", "advice"),
    [
        (
            "transformers",
            "TrainingArguments(..., dataloader_num_workers=3, dataloader_persistent_workers=True)",
        ),
        ("timm", "create_loader(..., num_workers=3, persistent_workers=True)"),
        (
            "planted",
            "num_workers=3, persistent_workers=True for this loader, by the settings of planted, "
            "which builds it",
        ),
    ],
)
def test_a_loader_that_a_package_builds_is_changed_in_its_settings(
    package: str, advice: str
) -> None:
    planted = Planted(fetch_s=0.03, compute_s=0.01)
    planted.loader = replace(planted.loader, built_by=package)
    finding = only(case_of(planted))
    assert (finding.id, finding.advice) == ("serial_loading", advice)
    assert finding.change == {"num_workers": 3, "persistent_workers": True}
    assert finding.evidence["built_by"] == package


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
    assert finding.is_at_most
    # Without them a step takes 15.5 ms instead of 22; what remains may get faster besides.
    assert finding.evidence[LIKELY] == pytest.approx(22 / 15.5, rel=0.02)
    assert any("num_workers=" in told and "only a rerun" in told for told in finding.also)


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


def test_what_workers_need_first_leaves_their_gain_and_no_patch() -> None:
    planted = Planted(fetch_s=0.03, running=0.6, compute_s=0.01)
    plain = only(case_of(planted))
    planted.loader = replace(planted.loader, open_files=["archive (NpzFile)"])
    finding = only(case_of(planted))
    assert finding.advice.startswith("open archive (NpzFile) in __getitem__")
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


def test_workers_are_added_where_they_sleep() -> None:
    planted = Planted(workers=1, fetch_s=0.06, compute_s=0.02)
    finding = only(case_of(planted))
    assert finding.id == "too_few_workers"
    assert finding.change["num_workers"] in (3, 4)
    assert finding.predicted_speedup is not None
    assert finding.predicted_speedup[0] <= 3.0 <= finding.predicted_speedup[1]
