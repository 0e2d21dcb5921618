"""Trains a wide perceptron on handwritten digits and saves it far too often, to a slow disk.

    python sample_scripts/slow_checkpoints.py [key=value ...]

What a profiler should find: checkpoints take more than half of the training loop. Every 20th step
`torch.save` writes the model and the optimizer's moments (13 MB) while training waits: these steps
are outliers, at a regular spacing. `SlowDisk` stands in for a slow disk: it takes 40 MB/s, and
`torch.save` does not return before the bytes are on the real one (fsync).
"""

import io
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from overrides import override
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from truth import truth


@dataclass
class Settings:
    epochs: int = 9
    batch_size: int = 64
    learning_rate: float = 1e-3
    width: int = 1024  # of the hidden layers
    samples: int = 1792  # to train on, of the 1797 digits
    save_every: int = 20  # steps
    disk_mb_per_s: float = 40.0
    checkpoint: str = str(Path(__file__).parent / "data" / "checkpoint.pt")
    seed: int = 1337


class SlowDisk(io.FileIO):
    """A file that takes `mb_per_s`, and whose flush waits for the disk."""

    def __init__(self, path, mb_per_s):
        super().__init__(path, "w")
        self.bytes_per_s = mb_per_s * 1e6

    def write(self, block):
        time.sleep(len(block) / self.bytes_per_s)
        return super().write(block)

    def flush(self):
        if not self.closed:
            os.fsync(self.fileno())


def save_checkpoint(model, optimizer, settings):
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    with SlowDisk(settings.checkpoint, settings.disk_mb_per_s) as file, truth("checkpoint"):
        torch.save(state, file)


def build_model(width):
    return nn.Sequential(
        nn.Linear(64, width),
        nn.ReLU(),
        nn.Linear(width, width),
        nn.ReLU(),
        nn.Linear(width, 10),
    )


def main():
    settings = override(Settings(), sys.argv[1:])
    torch.manual_seed(settings.seed)
    Path(settings.checkpoint).parent.mkdir(parents=True, exist_ok=True)
    digits = load_digits()
    images = torch.tensor(digits.data[: settings.samples], dtype=torch.float32) / 16
    labels = torch.tensor(digits.target[: settings.samples])
    dataset = TensorDataset(images, labels)
    loader = DataLoader(dataset, batch_size=settings.batch_size, shuffle=True)

    model = build_model(settings.width)
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.AdamW(model.parameters(), lr=settings.learning_rate)
    step = 0
    with truth("training"):
        for epoch in range(settings.epochs):
            for inputs, targets in truth.batches(loader):
                loss = criterion(model(inputs), targets)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                step += 1
                truth.count("steps")
                if step % settings.save_every == 0:
                    save_checkpoint(model, optimizer, settings)
            print(f"epoch {epoch}: loss {loss.item():.4f}")
    print(f"final loss {loss.item():.6f}")


if __name__ == "__main__":
    main()
