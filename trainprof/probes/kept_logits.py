"""Whether Hugging Face's Trainer keeps all that a model gives in an evaluation, for metrics."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from trainprof.probes.user_texts import any_text, lines_with

_METRICS: Final = re.compile(r"\bcompute_metrics\s*=(?!=)")
# What has it keep less, or nothing.
_KEEPS_LESS: Final = re.compile(
    r"preprocess_logits_for_metrics|batch_eval_metrics|prediction_loss_only|def prediction_step"
)


def keeps_logits(is_user_file: Callable[[str], bool]) -> bool:
    """Whether the user's files ask for metrics of what a model gives, and nowhere for less of it.

    Args:
        is_user_file: Of a path.
    """
    if not lines_with(is_user_file, _METRICS):
        return False
    return not any_text(is_user_file, lambda text: _KEEPS_LESS.search(text) is not None)
