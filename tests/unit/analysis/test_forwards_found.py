"""Forwards that are computed in vain or again, and tables that are changed as a whole."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest
from support.cases import STEPS, Planted, case_of, idle_device
from support.found import found, only

from trainprof.analysis.diagnosis.case import Case
from trainprof.analysis.diagnosis.diagnose import diagnose
from trainprof.analysis.diagnosis.together import together
from trainprof.analysis.embedding_tables import EmbeddingTable, EmbeddingTables
from trainprof.analysis.memory_figures import DeviceMemory
from trainprof.analysis.repeated_forwards import RepeatedForwards
from trainprof.analysis.torch_settings import LoopedOptimizer, TorchSettings
from trainprof.analysis.unused_forwards import UnusedForwards

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
