"""What Hugging Face's Trainer keeps of all that a model gives in an evaluation."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from trainprof.analysis.diagnosis.case import Case
from trainprof.analysis.loader_figures import Loader

FEWER_LOGITS: Final = (
    "Trainer(..., preprocess_logits_for_metrics=...), a function that gives what compute_metrics "
    "needs of the logits of a batch (their argmax, say): else all of them are kept"
)
# Of an evaluation, besides what the model computes and what loading takes.
_MUCH: Final = 0.3
# Of one evaluation: a few numbers a sample are kept in no time, and its metrics take what is left.
_LARGE_BYTES: Final = 50_000_000


def may_keep_logits(loaders: Iterable[Loader]) -> bool:
    """Whether a Trainer builds one of the loaders that is not known to keep less."""
    return any(one.built_by == "transformers" and one.keeps_logits is not False for one in loaders)


def keeping_s(case: Case, loader: Loader, spent_s: float) -> float | None:
    """Returns what keeping logits, and metrics of all of them, take of an evaluation at most.

    Args:
        case: The run.
        loader: That the evaluation goes over.
        spent_s: What it takes in the training phase.

    Returns:
        None where nobody keeps them, they or that are little, or it is not known.
    """
    told = case.summary.evaluation
    if loader.keeps_logits is not True or told.forward_s is None or told.seconds <= 0:
        return None
    # The Trainer's loaders tell no batch size; its evaluation goes over all of the dataset.
    if (loader.draws_all or 0) * (told.logits_bytes or 0) < _LARGE_BYTES:
        return None
    share = 1 - (told.forward_s + told.waited_s) / told.seconds
    return share * spent_s if share >= _MUCH else None
