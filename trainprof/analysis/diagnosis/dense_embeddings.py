"""Each step goes through all of a table of embeddings, of which a batch looks up a few rows.

What it means: backward gives an nn.Embedding a gradient as large as its table, zero but for the
rows of the batch, and the optimizer changes all of it, with its moments. With a table of millions
of numbers that is what a step takes, whatever the batch.

How it is measured: of a few backward passes the graph is gone through, and its parts are timed:
what the gradients of tables take of backward. Of the optimizer's time, tables have the share of
their numbers. How many rows are looked up is taken from the number of indices, each counted. Tables
that something else multiplies with (a decoder's tied weights) get all of their gradient by that,
and are not told. EmbeddingBag is not judged: it does not tell how many indices it had; nor a run
that clips gradients, for torch.nn.utils.clip_grad_norm_ does not take sparse ones, nor one of
DistributedDataParallel or on a GPU.

When it is wrong: where the table has to change as a whole (weight decay on all rows).

What to do: nn.Embedding(..., sparse=True): backward then gives the rows of the batch alone, and SGD
without momentum, Adagrad and SparseAdam change no others. SparseAdam is Adam for the rows that have
a gradient: moments of the others stay as they are, so that training goes another way. Give it the
tables, and the former optimizer the rest.
"""

from __future__ import annotations

from typing import Final

from trainprof.analysis.diagnosis.case import Case
from trainprof.analysis.diagnosis.gains import of_python
from trainprof.analysis.diagnosis.plain import plain_finding
from trainprof.analysis.diagnosis.rule import Threshold
from trainprof.analysis.diagnosis.wording import span
from trainprof.analysis.embedding_tables import EmbeddingTable
from trainprof.analysis.finding import Finding
from trainprof.analysis.verdict_level import percent

ID: Final = "dense_embeddings"
KEYS: Final[tuple[str, ...]] = ("backward", "optimizer")
THRESHOLDS: Final = {
    "looked_up_share": Threshold(0.1, "of a table's rows, by a batch", is_upper=True),
    "share": Threshold(0.05, "of training: what its gradient and its update take"),
}
# What is left for the rows themselves, at least: for a table in each step, and for each number of
# them (tables of 64 columns, 128 and 2,048 rows, torch 2.13 on one core: SGD 40 to 110 us, Adagrad
# 110 to 500, SparseAdam 140 to 850).
_A_TABLE_S: Final = {True: 30e-6, False: 100e-6}
_A_NUMBER_S: Final = {True: 0.4e-9, False: 2e-9}
_ADAMS: Final = ("Adam", "AdamW", "NAdam", "RAdam", "Adamax")


def find(case: Case) -> Finding | None:
    told = case.torch.tables
    if told is None or told.numbers <= 0:
        return None
    # What is advised would end such a run with an error, is added up in another way, or has not
    # been measured there.
    if case.clips_gradients or case.torch.is_data_parallel or case.is_on_device:
        return None
    most = case.threshold(ID, "looked_up_share", THRESHOLDS["looked_up_share"].value)
    passes = _passes_per_step(case)
    tables = [one for one in told.tables if passes * one.looked_up <= most]
    if not tables:
        return None
    numbers = sum(one.numbers for one in tables)
    # Those that are told are the large ones: of backward they take what all tables do.
    of_tables = numbers / max(sum(one.numbers for one in told.tables), 1)
    backward_s = of_tables * told.backward_share * case.training.get("backward", 0.0)
    optimizer_s = min(numbers / told.numbers, 1.0) * case.training.get("optimizer", 0.0)
    spent_s = backward_s + optimizer_s
    part = spent_s / case.training_s if case.training_s > 0 else 0.0
    left_s = case.summary.training.steps * sum(_left_s(one) for one in tables)
    gain = of_python(case, max(spent_s - left_s, 0.0))
    if part < case.threshold(ID, "share", THRESHOLDS["share"].value) or gain is None:
        return None
    looked_up = max(one.indices for one in tables)
    return plain_finding(
        ID,
        f"each step goes through {_what(tables)}, of which a batch looks up at most {looked_up:,}: "
        f"their gradients and updates take {span(spent_s)}, {percent(part)} of training",
        gain,
        site=tables[0].site,
        advice=_advice(tables),
        cautions=_cautions(tables),
        also=_also(tables),
        evidence={
            "backward_s": backward_s,
            "optimizer_s": optimizer_s,
            "share": part,
            "looked_up_share": max(passes * one.looked_up for one in tables),
            "numbers_of_tables": numbers,
            "numbers_of_optimizers": told.numbers,
            "passes_looked_at": told.looks,
        },
    )


def _left_s(table: EmbeddingTable) -> float:
    """Returns what a step with the rows of a batch takes at least."""
    columns = table.numbers / max(table.rows, 1)
    return _A_TABLE_S[table.is_plain] + _A_NUMBER_S[table.is_plain] * table.indices * columns


def _passes_per_step(case: Case) -> float:
    """Returns over how many batches gradients are added up."""
    training = case.summary.training
    if not training.steps or not training.iterations:
        return 1.0
    return max(training.iterations / training.steps, 1.0)


def _what(tables: list[EmbeddingTable]) -> str:
    if len(tables) == 1:
        return f"all {tables[0].rows:,} rows of an nn.Embedding"
    rows = " and ".join(f"{one.rows:,}" for one in tables[:2])
    more = "" if len(tables) == 2 else " and so on"
    return f"all rows of {len(tables)} nn.Embedding ({rows}{more})"


def _advice(tables: list[EmbeddingTable]) -> str:
    which = "nn.Embedding(..., sparse=True)"
    if all(one.is_plain for one in tables):
        return f"{which}: {tables[0].optimizer} then changes the rows of the batch alone"
    if all(one.optimizer in _ADAMS for one in tables):
        return f"{which}, with torch.optim.SparseAdam for its weight and the rest as it is"
    return (
        f"{which}, with an optimizer for its weight that takes such gradients: SparseAdam, "
        "Adagrad, or SGD without momentum"
    )


def _cautions(tables: list[EmbeddingTable]) -> list[str]:
    told = ["optimizers with fused=True do not take sparse gradients"]
    if not all(one.is_plain for one in tables):
        told.insert(
            0,
            "rows without a gradient keep their moments and are not decayed then: training goes "
            "another way, so compare what it reaches",
        )
    return told


def _also(tables: list[EmbeddingTable]) -> list[str]:
    places = list(dict.fromkeys(one.site for one in tables[1:] if one.site is not None))
    others = [place for place in places if place != tables[0].site]
    return [f"the same holds for the one that {' and '.join(others)} builds"] if others else []
