"""Each step goes through all of a table of embeddings, of which a batch looks up a few rows.

What it means: backward gives an nn.Embedding a gradient as large as its table, zero but for the
rows of the batch, and the optimizer changes all of it, with its moments.

How it is measured: the optimizer's time, and that of setting gradients back, by the table's share
of the numbers. Reported are tables of 100,000 numbers and more of which a tenth of the rows at most
has a gradient at one of the first updates: what looks up other rows, or computes with the whole
table, gives more of them one. Nothing is reported where gradients are clipped or read, with
DistributedDataParallel, or on a GPU.

When it is wrong: where the table has to change as a whole (weight decay on all rows).

What to do: nn.Embedding(..., sparse=True), which SGD without momentum, Adagrad and SparseAdam take,
and change the rows of the batch alone. SparseAdam is Adam for those: training goes another way.
"""

from __future__ import annotations

from typing import Final

from trainprof.analysis.summary.finding import Finding, RuleTraits, Threshold
from trainprof.analysis.summary.levels import percent
from trainprof.findings.gain import plain_finding, python_gain
from trainprof.findings.model.dense_embeddings.probe import EmbeddingTablesNote
from trainprof.findings.rule import Rule
from trainprof.findings.run_context import RunContext
from trainprof.findings.wording import span

# A number of a sparse update takes so much longer than one of a whole one (torch 2.13, two cores).
_ROWS_TIMES: Final = 4.0
_CAUTIONS: Final = (
    "optimizers with fused=True do not take sparse gradients",
    "with SparseAdam rows without a gradient keep their moments: compare what training reaches",
)


def find(context: RunContext) -> Finding | None:
    most = RULE.threshold(context.settings, "looked_up_share")
    note = context.notes.last(EmbeddingTablesNote)
    tables = [x for x in note.tables if 0 < x.indices <= most * x.rows] if note else []
    if note is None or not tables or context.clips_gradients or context.is_on_device:
        return None
    if context.torch.is_data_parallel:
        return None
    numbers = sum(table.numbers for table in tables)
    spent_s = sum(context.training.get(key, 0.0) for key in ("optimizer", "zero_grad"))
    spent_s *= min(numbers / max(note.numbers, numbers, 1), 1.0)
    part = spent_s / context.training_s if context.training_s > 0 else 0.0
    looked_up = max(table.indices / table.rows for table in tables)
    gain = python_gain(context, spent_s * (1 - _ROWS_TIMES * looked_up))
    if part < RULE.threshold(context.settings, "share") or gain is None:
        return None
    is_plain = all(table.is_plain for table in tables)
    first = max(tables, key=lambda table: table.numbers)
    return plain_finding(
        RULE.id,
        f"each step changes all {first.rows:,} rows of an nn.Embedding, of which "
        f"it looks up about {first.indices:,}: updates of the rest take {span(spent_s)}, "
        f"{percent(part)} of training, and backward fills their gradients",
        gain,
        site=context.notes.sites.known(first.site),
        advice="nn.Embedding(..., sparse=True)"
        + (
            "" if is_plain else ", with torch.optim.SparseAdam for its weight and the rest as it is"
        ),
        cautions=[*_CAUTIONS[: 1 if is_plain else 2]],
        evidence={"update_s": spent_s, "share": part, "looked_up_share": looked_up},
    )


RULE: Final = Rule(
    id="dense_embeddings",
    thresholds={
        "looked_up_share": Threshold(0.1, "of a table's rows, by a step", is_upper=True),
        "share": Threshold(0.05, "of training: what its update takes"),
    },
    find=find,
    explanation=__doc__,
    order=200,
    traits=RuleTraits(keys=["backward", "optimizer", "zero_grad"]),
    includes="slow_optimizer",
)
