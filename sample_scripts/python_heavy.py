"""Trains on handwritten digits and, after each step, ranks the last predictions in pure Python.

    python sample_scripts/python_heavy.py [key=value ...]

What a profiler should find: more than half of the training loop is Python code of the script's
own, between the optimizer's step and the next batch: `ranking_quality` compares each positive with
each negative, for ten classes, one pair at a time. No part of torch is slow, and neither is the
loader. Sorting (or torchmetrics), or doing it every 100th step, would end it.
"""

import sys
from collections import deque
from dataclasses import dataclass

import torch
from overrides import override
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from truth import truth


@dataclass
class Settings:
    epochs: int = 7
    batch_size: int = 64
    learning_rate: float = 1e-3
    width: int = 24  # channels
    window: int = 768  # predictions to rank
    samples: int = 1792  # to train on, of the 1797 digits
    seed: int = 1337


def ranking_quality(predictions):
    """Area under the ROC curve, mean over the ten digits.

    Args:
        predictions: Pairs of (ten scores, the true digit).

    Returns:
        How often a digit of a class scores above one of another class, 0 to 1.
    """
    right = pairs = 0
    for digit in range(10):
        positives = [scores[digit] for scores, label in predictions if label == digit]
        negatives = [scores[digit] for scores, label in predictions if label != digit]
        pairs += len(positives) * len(negatives)
        for positive in positives:
            for negative in negatives:
                if positive > negative:
                    right += 1
    return right / pairs


def build_model(width):
    return nn.Sequential(
        nn.Conv2d(1, width, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(width, 2 * width, 3, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(128 * width, 10),
    )


def main():
    settings = override(Settings(), sys.argv[1:])
    torch.manual_seed(settings.seed)
    digits = load_digits()
    images = torch.tensor(digits.images[: settings.samples], dtype=torch.float32) / 16
    labels = torch.tensor(digits.target[: settings.samples])
    dataset = TensorDataset(images.unsqueeze(1), labels)
    loader = DataLoader(dataset, batch_size=settings.batch_size, shuffle=True)

    model = build_model(settings.width)
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.AdamW(model.parameters(), lr=settings.learning_rate)
    predictions = deque(maxlen=settings.window)
    with truth("training"):
        for epoch in range(settings.epochs):
            for inputs, targets in truth.batches(loader):
                scores = model(inputs)
                loss = criterion(scores, targets)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                truth.count("steps")
                with truth("metrics"):
                    predictions.extend(zip(scores.tolist(), targets.tolist(), strict=True))
                    quality = ranking_quality(predictions)
            print(f"epoch {epoch}: loss {loss.item():.4f}, ranking quality {quality:.4f}")
    print(f"final loss {loss.item():.6f}")


if __name__ == "__main__":
    main()
