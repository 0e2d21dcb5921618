"""Each step updates a whole embedding table, of which a batch needs a few rows.

What it means: backward creates a gradient as large as the nn.Embedding's table, zero except in the
rows of the batch. The optimizer then updates all rows, with their moments.

How it is measured: the cost is the time of the optimizer and of zero_grad(), times the table's
share of all parameters. A table counts from 100,000 numbers on, if at most a tenth of its rows has
a gradient in one of the first updates. Nothing is reported if gradients are clipped or read, with
DistributedDataParallel, or on a GPU.

When it is wrong: all rows may have to change, as with weight decay.

What to do: nn.Embedding(..., sparse=True). SGD without momentum, Adagrad and SparseAdam accept its
gradients and update only the rows of the batch; optimizers with fused=True refuse them. SparseAdam
leaves the moments of other rows unchanged, so training differs from Adam.
"""

from __future__ import annotations

from typing import Final

from trainprof.analysis.summary.finding import Finding, RuleTraits, Threshold
from trainprof.findings.gain import plain_finding, python_gain
from trainprof.findings.model.dense_embeddings.probe import EmbeddingTablesNote
from trainprof.findings.rule import Rule
from trainprof.findings.run_context import RunContext

# The time of a number in a sparse update, of one in a dense update (torch 2.13, two cores).
_ROWS_TIMES: Final = 4.0
_MOMENTS: Final = "SparseAdam keeps the moments of other rows unchanged: compare the final loss"


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
        f"each step updates all {first.rows:,} rows of an nn.Embedding, but a batch needs "
        f"{first.indices:,}: {context.of_step(spent_s, 'optimizer', 'zero_grad')}",
        gain,
        site=context.notes.sites.known(first.site),
        advice="nn.Embedding(..., sparse=True)"
        + ("" if is_plain else ", with torch.optim.SparseAdam for its weight"),
        cautions=[] if is_plain else [_MOMENTS],
        evidence={"update_s": spent_s, "share": part, "looked_up_share": looked_up},
    )


RULE: Final = Rule(
    id="dense_embeddings",
    thresholds={
        "looked_up_share": Threshold(0.1, "of a table's rows, in a step, at most", is_upper=True),
        "share": Threshold(0.05, "of training, in the table's update"),
    },
    find=find,
    explanation=__doc__,
    order=200,
    traits=RuleTraits(
        keys=["backward", "optimizer", "zero_grad"],
        action="Use sparse gradients for the embedding",
    ),
    includes="slow_optimizer",
)
