"""Hugging Face's Trainer saves a checkpoint every 40 steps; mended, half as often."""

from tempfile import TemporaryDirectory

import torch
from timed import Pace, main
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

STEPS = 160


class Texts(Dataset):
    def __init__(self) -> None:
        self.ids = torch.randint(0, 4096, (4096, 256))

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self.ids[index], "labels": self.ids[index]}


class Paced(TrainerCallback):
    def __init__(self, pace: Pace) -> None:
        self.steps = pace.over(range(STEPS))

    def on_step_begin(self, *_: object, **__: object) -> None:
        next(self.steps)

    def on_train_end(self, *_: object, **__: object) -> None:
        next(self.steps, None)


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
