"""Each step goes through all of a table of embeddings, of which a batch looks up a few rows.

What it means: backward gives an nn.Embedding a gradient as large as its table, zero but for the
rows of the batch, and the optimizer changes all of it, with its moments. With a table of millions
of numbers that is what a step takes, whatever the batch.

How it is measured: of a few backward passes the graph is gone through, and its parts are timed:
what the gradients of tables take of backward. Of the time of the optimizer, and of setting
gradients back, tables have the share of their numbers. How many rows are looked up is taken from
the number of indices, each counted: told are tables of which a batch looks up a tenth of the rows
at most, or a half where SGD changes them. Tables that something else multiplies with (a decoder's
tied weights) get all of their gradient by that, and are not told. EmbeddingBag is not judged: it
does not tell how many indices it had; nor a run that clips gradients, for
torch.nn.utils.clip_grad_norm_ does not take sparse ones, nor one whose own code reads gradients,
which may do what those do not take either (clamp_, view), nor one of DistributedDataParallel or on
a GPU.

When it is wrong: where the table has to change as a whole (weight decay on all rows).

What to do: nn.Embedding(..., sparse=True): backward then gives the rows of the batch alone, and SGD
without momentum, Adagrad and SparseAdam change no others. SparseAdam is Adam for the rows that have
a gradient: moments of the others stay as they are, so that training goes another way. Give it the
tables, and the former optimizer the rest; in a LightningModule two optimizers need manual
optimization.
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
KEYS: Final[tuple[str, ...]] = ("backward", "optimizer", "zero_grad")
# Of a table in memory (20,000 to 100,000 rows of 32 to 256 columns, torch 2.13 on two cores), a
# half looked up: sparse ones were 1.31 to 1.49 times as fast with SGD, 0.82 to 1.19 times with
# Adagrad and Adam; a tenth: 1.13 to 2.36, and 0.9 to 4.6.
THRESHOLDS: Final = {
    "looked_up_share": Threshold(0.1, "of a table's rows, by a batch", is_upper=True),
    "looked_up_share_sgd": Threshold(0.5, "the same, where SGD changes them", is_upper=True),
    "share": Threshold(0.05, "of training: what its gradient and its update take"),
}
# What is left for the rows themselves, at least, by whether it is SGD that changes them: for a
# table in each step, for each number, and for each row of a table larger than caches. torch 2.13 on
# one and two cores, 128 to 40,000 rows: of tables of 2,000 and 20,000 rows of 64 columns a number
# took 0.55 ns and more with SGD, 1.2 and more with Adagrad and SparseAdam; of 100,000 and 1,000,000
# rows, a row of 32, 64 and 256 columns 45, 100 and 166 ns with SGD, 300, 400 and 840 ns with those.
_A_TABLE_S: Final = {True: 30e-6, False: 100e-6}
_A_NUMBER_S: Final = {True: 0.4e-9, False: 1.2e-9}
_A_ROW_S: Final = {True: 30e-9, False: 200e-9}
_CACHED_NUMBERS: Final = 4_000_000
_SGD: Final = "SGD"
_ADAMS: Final = ("Adam", "AdamW", "NAdam", "RAdam", "Adamax")
_REFUSED_BY_LIGHTNING: Final = (
    "Lightning's Trainer ends with an error where a module has two optimizers and does not "
    "optimize manually (self.automatic_optimization = False, and the steps in training_step)"
)


def find(case: Case) -> Finding | None:
    told = case.torch.tables
    if told is None or told.numbers <= 0:
        return None
    # What is advised would end such a run with an error, is added up in another way, or has not
    # been measured there.
    if case.clips_gradients or told.reads_gradients:
        return None
    if case.torch.is_data_parallel or case.is_on_device:
        return None
    passes = _passes_per_step(case)
    tables = [one for one in told.tables if passes * one.looked_up <= _most(one, case)]
    if not tables:
        return None
    numbers = sum(one.numbers for one in tables)
    # Those that are told are the large ones: of backward they take what all tables do.
    of_tables = numbers / max(sum(one.numbers for one in told.tables), 1)
    backward_s = of_tables * told.backward_share * case.training.get("backward", 0.0)
    of_all = min(numbers / told.numbers, 1.0)
    optimizer_s = of_all * case.training.get("optimizer", 0.0)
    zero_grad_s = of_all * case.training.get("zero_grad", 0.0)
    spent_s = backward_s + optimizer_s + zero_grad_s
    part = spent_s / case.training_s if case.training_s > 0 else 0.0
    left_s = case.summary.training.steps * sum(_left_s(one, passes) for one in tables)
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
        cautions=_cautions(tables, case),
        also=_also(tables),
        evidence={
            "backward_s": backward_s,
            "optimizer_s": optimizer_s,
            "zero_grad_s": zero_grad_s,
            "share": part,
            "looked_up_share": max(passes * one.looked_up for one in tables),
            "numbers_of_tables": numbers,
            "numbers_of_optimizers": told.numbers,
            "passes_looked_at": told.looks,
        },
    )


def _most(table: EmbeddingTable, case: Case) -> float:
    """Returns the share of its rows that a batch may look up."""
    name = "looked_up_share_sgd" if _is_plain_sgd(table) else "looked_up_share"
    return case.threshold(ID, name, THRESHOLDS[name].value)


def _is_plain_sgd(table: EmbeddingTable) -> bool:
    return table.is_plain and table.optimizer == _SGD


def _left_s(table: EmbeddingTable, passes: float) -> float:
    """Returns what a step with the rows of so many batches takes at least."""
    columns, is_sgd = table.numbers / max(table.rows, 1), _is_plain_sgd(table)
    a_row_s = _A_NUMBER_S[is_sgd] * columns
    if table.numbers > _CACHED_NUMBERS:
        a_row_s += _A_ROW_S[is_sgd]
    return _A_TABLE_S[is_sgd] + a_row_s * table.indices * passes


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


def _cautions(tables: list[EmbeddingTable], case: Case) -> list[str]:
    told = ["optimizers with fused=True do not take sparse gradients"]
    if all(one.is_plain for one in tables):
        return told
    told.insert(
        0,
        "rows without a gradient keep their moments and are not decayed then: training goes "
        "another way, so compare what it reaches",
    )
    return [*told, _REFUSED_BY_LIGHTNING] if case.torch.trains_by_lightning else told


def _also(tables: list[EmbeddingTable]) -> list[str]:
    places = list(dict.fromkeys(one.site for one in tables[1:] if one.site is not None))
    others = [place for place in places if place != tables[0].site]
    return [f"the same holds for the one that {' and '.join(others)} builds"] if others else []
