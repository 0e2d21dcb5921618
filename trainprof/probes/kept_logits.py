"""Whether Hugging Face's Trainer keeps all that a model gives in an evaluation, for metrics."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from trainprof.probes.user_texts import any_text, lines_with

# An argument: what is assigned has spaces around the sign.
_METRICS: Final = re.compile(r"\bcompute_metrics=(?!=|\s*None\b)")
_TRAINER: Final = re.compile(r"Trainer\(")
# What has it keep less, nothing, or other than logits: the tokens that a model generates.
_KEEPS_LESS: Final = re.compile(
    r"preprocess_logits_for_metrics|batch_eval_metrics|prediction_loss_only|def prediction_step"
    r"|predict_with_generate|Seq2SeqTrainer|def evaluation_loop|def evaluate\b"
)


def keeps_logits(is_user_file: Callable[[str], bool]) -> bool:
    """Whether the user's files ask a Trainer for metrics of logits, and nowhere for less of them.

    Args:
        is_user_file: Of a path.
    """
    asking, calling = (
        {path for path, _ in lines_with(is_user_file, one)} for one in (_METRICS, _TRAINER)
    )
    if not asking & calling:
        return False
    return not any_text(is_user_file, lambda text: _KEEPS_LESS.search(text) is not None)
