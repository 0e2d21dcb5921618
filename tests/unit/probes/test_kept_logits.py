"""Whether scripts have Hugging Face's Trainer keep all logits for their metrics."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

from trainprof.probes.kept_logits import keeps_logits

METRICS = "trainer = Trainer(model=model, args=args, compute_metrics=compute_metrics)\n"
LESS = "trainer = Trainer(compute_metrics=score, preprocess_logits_for_metrics=largest)\n"


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        ([METRICS], True),
        (["x = 1\n", METRICS], True),
        (["trainer = Trainer(\n    args=args,\n    compute_metrics=score,\n)\n"], True),
        (["trainer = OwnTrainer(model, compute_metrics=score)\n"], True),
        (["trainer = Trainer(compute_metrics=None)\n"], False),
        (["trainer = Trainer(compute_metrics= None if quick else score)\n"], False),
        (["compute_metrics = score\ntrainer = Trainer(model=model)\n"], False),
        (["build(compute_metrics=score)\n"], False),
        (["build(compute_metrics=score)\n", "trainer = Trainer(model=model)\n"], False),
        (["trainer = Trainer(model=model)\n"], False),
        (["# compute_metrics=score\n"], False),
        (["def compute_metrics(pred):\n    return {}\n"], False),
        (["same = compute_metrics == None\n"], False),
        ([LESS], False),
        ([METRICS, LESS], False),  # which of the two nobody knows
        ([METRICS, "args = TrainingArguments(batch_eval_metrics=True)\n"], False),
        ([METRICS, "args = Arguments(predict_with_generate=True)\n"], False),
        (["trainer = Seq2SeqTrainer(compute_metrics=score)\n"], False),
        ([METRICS, "class Own:\n    def evaluation_loop(self):\n        pass\n"], False),
        ([METRICS, "class Own:\n    def evaluate(self):\n        pass\n"], False),
        ([METRICS, "def evaluate_later():\n    pass\n"], True),
        ([METRICS, "class Own:\n    def prediction_step(self):\n        pass\n"], False),
    ],
)
def test_what_the_users_files_ask_for(
    texts: list[str], expected: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number, text in enumerate(texts):
        path = tmp_path / f"planted_{number}.py"
        path.write_text(text)
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec is not None
        monkeypatch.setitem(sys.modules, path.stem, importlib.util.module_from_spec(spec))
    assert keeps_logits(lambda path: path.startswith(str(tmp_path))) is expected
