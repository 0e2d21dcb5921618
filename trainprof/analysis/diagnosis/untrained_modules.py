"""Modules that have nothing to learn take long in each step, beside the model.

What it means: an augmentation or a transform that is an nn.Module is called by the training loop,
ahead of the model, or a metric after it. In a table of a step's parts that looks like forward, yet
nothing is learned meanwhile: what prepares data could be done by workers beside training, and a
metric is mostly wanted once an epoch.

How it is measured: from time to time, the calls of each line are looked at for some steps. Modules
without parameters count whose results have no graph, called in at least every sixth step, outside
of loaders. They prepare data where they are called ahead of every model since the last pass of
backward, and the very tensors that they give (or what another such module makes of them) are given
to a model that is trained. They are metrics by their class (torchmetrics); and what is given the
very tensors that the model gave, after backward, and keeps nothing for later, is only looked at.
Of all others nothing is said: their results may be what training goes by. How long they take is
that of the host, by the calls that were looked at; on a device nothing is said.

When it is wrong: where all cores are busy with torch's own threads workers have to share them.
Where training changes the module as it goes on, copies of it in workers do not learn of that. And
where early stopping, a schedule or the next step goes by a metric, it is needed that often.

What to do: what prepares data belongs into the dataset or collate_fn, where workers (num_workers)
do it beside training; what is the same each time can be done once, ahead of it. A metric takes its
counts in each step by update() and is computed once an epoch by compute(), or it looks at every
hundredth step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from trainprof.analysis.calls_told import DATA, METRIC, WATCHED, SideModule
from trainprof.analysis.diagnosis.case import Case
from trainprof.analysis.diagnosis.gains import of_python
from trainprof.analysis.diagnosis.plain import plain_finding
from trainprof.analysis.diagnosis.rule import Threshold
from trainprof.analysis.diagnosis.wording import span
from trainprof.analysis.finding import Finding
from trainprof.analysis.verdict_level import percent

ID: Final = "untrained_modules"
KEYS: Final[tuple[str, ...]] = ("forward",)
THRESHOLDS: Final = {
    "share": Threshold(0.05, "of training: what could go at most"),
    "wait_share": Threshold(
        0.05,
        "of training that waits for workers: from here on they are not given more to do",
        is_upper=True,
    ),
}
# Of what the calls take, in Python code: from here on `python_in_model` tells of it.
_PYTHON_FROM_SHARE: Final = 0.5
_DOES: Final[Mapping[str, str]] = {
    DATA: "prepares here what the model is given",
    METRIC: "is a metric, and is called here in each step",
    WATCHED: "looks here at what the model gave, after backward",
}
_ADVICE: Final[Mapping[str, str]] = {
    DATA: "do it in the dataset or collate_fn, where workers (num_workers) do it beside training",
    METRIC: "update() in each step and compute() once an epoch, or all of it in every hundredth "
    "step",
    WATCHED: "do it in every hundredth step, or once an epoch",
}
_NEEDED: Final = (
    "where early stopping, a schedule or the next step goes by it, that sees less of it"
)
_CAUTIONS: Final[Mapping[str, Sequence[str]]] = {
    DATA: (
        "what is drawn at random is drawn otherwise then: for each sample in the dataset, by each "
        "worker's own generator",
        "workers have a copy of it: what training changes in it does not reach them; and where "
        "torch's own threads use all cores, workers share those",
    ),
    METRIC: (_NEEDED,),
    WATCHED: (_NEEDED,),
}


def find(case: Case) -> Finding | None:
    if case.is_on_device or case.training_s <= 0 or _is_python(case):
        return None
    may_move = _may_move(case)
    told = [one for one in case.torch.side_modules if one.role != DATA or may_move]
    seconds = min(sum(one.seconds for one in told), case.training.get("forward", 0.0))
    share = seconds / case.training_s
    gain = of_python(case, seconds)
    if share < case.threshold(ID, "share", THRESHOLDS["share"].value) or gain is None:
        return None
    first = told[0]
    with_others = " with those below" if len(told) > 1 else ""
    return plain_finding(
        ID,
        f"{first.name}, which has nothing to learn, {_DOES[first.role]}: about "
        f"{span(seconds)}{with_others}, {percent(share)} of training",
        gain,
        site=first.site,
        advice=_ADVICE[first.role],
        cautions=[*_CAUTIONS[first.role]],
        also=[_also(one) for one in told[1:]],
        evidence={
            "calls_s": seconds,
            "share": share,
            "lines": len(told),
            "calls_looked_at": sum(one.calls for one in told),
        },
    )


def _may_move(case: Case) -> bool:
    """Whether workers could do more: there is a loader, and a core, and it does not wait for them.

    Workers that are late already would be later.
    """
    most = case.threshold(ID, "wait_share", THRESHOLDS["wait_share"].value)
    cores = case.cores()
    if not case.feeding or (cores is not None and cores < 2):
        return False
    return not any(fed.loader.num_workers and fed.wait_share > most for fed in case.feeding)


def _is_python(case: Case) -> bool:
    """Whether most of it may be Python code, whose lines another rule names."""
    told = case.summary.python_in_model
    spent_s = sum(one.seconds for one in case.torch.side_modules)
    return told is not None and told.seconds.get("forward", 0.0) >= _PYTHON_FROM_SHARE * spent_s


def _also(told: SideModule) -> str:
    where = told.site or "another line"
    return f"{told.name} {_DOES[told.role]} at {where}: {_ADVICE[told.role]}"
