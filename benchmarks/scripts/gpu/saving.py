"""Hugging Face's Trainer saves a checkpoint every 40 steps; mended, half as often."""

from tempfile import TemporaryDirectory

import torch
from recomputed import STEPS, Paced, Texts
from timed import Pace, main
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments


def train(is_fast: bool, pace: Pace) -> None:
    model = GPT2LMHeadModel(GPT2Config(vocab_size=4096, n_positions=256, use_cache=False))
    with TemporaryDirectory() as directory:
        arguments = TrainingArguments(
            directory,
            max_steps=STEPS,
            per_device_train_batch_size=16,
            save_steps=80 if is_fast else 40,
            save_total_limit=1,
            report_to=[],
            disable_tqdm=True,
            bf16=torch.cuda.is_available(),
        )
        Trainer(model, arguments, train_dataset=Texts(), callbacks=[Paced(pace)]).train()


if __name__ == "__main__":
    main(train)
