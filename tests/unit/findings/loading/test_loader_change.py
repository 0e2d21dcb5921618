"""Where a loader whose class does not take all that torch's does is given its arguments."""

from __future__ import annotations

from typing import Any

import pytest
from support import summaries
from support.cases import Planted, case_of
from support.findings import only

from trainprof.analysis.summary.loader import LoaderCall
from trainprof.findings.loading.batch_preparation import call_for_whole_batches
from trainprof.findings.loading.loader_change import call_with

OF_TORCH = ["dataset", "batch_size", "*", "sampler", "num_workers", "persistent_workers"]
BOTH: dict[str, Any] = {"num_workers": 3, "persistent_workers": True}
ALL_IN_CALL = "MyLoader(..., num_workers=3, persistent_workers=True)"
AT_ITS_OWN = "where the constructor at data.py:12 calls its base's"


def call(takes: list[str], *constructors: str) -> LoaderCall:
    return LoaderCall(ends_at=None, takes=takes, constructors=list(constructors))


@pytest.mark.parametrize(
    ("built", "expected"),
    [
        (None, ALL_IN_CALL),  # an older run
        (call(OF_TORCH), ALL_IN_CALL),
        (call(["ds", "bs", "*", "**"], "data.py:12"), ALL_IN_CALL),
        # The last of them is the one that calls what is no code of the user's.
        (
            call(["ds", "bs", "*"], "train.py:30", "data.py:12"),
            f"num_workers=3, persistent_workers=True {AT_ITS_OWN}",
        ),
        (
            call(["ds", "num_workers", "*"], "data.py:12"),
            f"MyLoader(..., num_workers=3), and persistent_workers=True {AT_ITS_OWN}",
        ),
        (
            call(["ds", "*"]),
            "num_workers=3, persistent_workers=True for this loader, by another way than "
            "MyLoader(...), which does not take it",
        ),
    ],
)
def test_no_class_is_given_what_it_does_not_take(built: LoaderCall | None, expected: str) -> None:
    planted = Planted(fetch_s=0.03, compute_s=0.01).having(kind="MyLoader", call=built)
    finding = only(case_of(planted))
    assert (finding.advice, finding.change) == (expected, BOTH)


def test_a_package_has_its_settings_whatever_its_class_takes() -> None:
    loader = summaries.loader("train.py:41", built_by="timm", call=call(["ds", "*"]))
    assert call_with(loader, {"num_workers": 8}) == "create_loader(..., num_workers=8)"


@pytest.mark.parametrize(
    ("takes", "begins"),
    [
        (OF_TORCH, "MyLoader(..., sampler=BatchSampler(x), batch_size=None, num_workers=0)"),
        (
            ["ds", "batch_size", "*"],
            f"sampler=BatchSampler(x), batch_size=None, num_workers=0 {AT_ITS_OWN}",
        ),
    ],
)
def test_whole_batches_are_asked_for_where_the_sampler_is_taken(
    takes: list[str], begins: str
) -> None:
    asked, built = "sampler=BatchSampler(x), batch_size=None", call(takes, "data.py:12")
    more: dict[str, Any] = {"kind": "MyLoader", "whole_batches": asked, "call": built}
    loader = summaries.loader("train.py:41", num_workers=2, **more)
    assert call_for_whole_batches(loader).startswith(begins)
