"""Trains a convolutional network on scikit-learn's handwritten digits: nothing is wrong here.

    python sample_scripts/healthy.py [key=value ...]

What a profiler should find: nothing to change. Forward and backward take more than nine tenths of
the training loop, the loader serves a batch from memory in a few hundredths of a step, and the
loss is read every 20th step. Each part of a step is timed, so that a ledger can be checked by it.
"""

import sys
from dataclasses import dataclass

import torch
from overrides import override
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from truth import truth


@dataclass
class Settings:
    epochs: int = 5
    batch_size: int = 64
    learning_rate: float = 1e-3
    width: int = 64  # channels
    samples: int = 1536  # to train on; the rest of the 1797 digits is to validate on
    seed: int = 1337


def load_images():
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
    return nn.functional.interpolate(images, size=16), torch.tensor(digits.target)


def build_model(width):
    return nn.Sequential(
        nn.Conv2d(1, width, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(width, width, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(width, 2 * width, 3, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(8 * width, 10),
    )


@truth("training")
def train_epoch(model, loader, criterion, optimizer, epoch):
    for step, (images, labels) in enumerate(truth.batches(loader)):
        with truth("forward"):
            scores = model(images)
        loss = criterion(scores, labels)
        with truth("zero_grad"):
            optimizer.zero_grad()
        with truth("backward"):
            loss.backward()
        with truth("optimizer"):
            optimizer.step()
        truth.count("steps")
        if step % 20 == 0:
            print(f"epoch {epoch}, step {step}: loss {loss.item():.4f}")
    return loss.item()


@truth("evaluation")
@torch.no_grad()
def evaluate(model, loader):
    model.eval()
    right = sum((model(images).argmax(dim=1) == labels).sum() for images, labels in loader)
    model.train()
    return right.item() / len(loader.dataset)


def main():
    settings = override(Settings(), sys.argv[1:])
    torch.manual_seed(settings.seed)
    images, labels = load_images()
    train_set = TensorDataset(images[: settings.samples], labels[: settings.samples])
    validation_set = TensorDataset(images[1536:], labels[1536:])
    train_loader = DataLoader(train_set, batch_size=settings.batch_size, shuffle=True)
    validation_loader = DataLoader(validation_set, batch_size=settings.batch_size)

    model = build_model(settings.width)
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.AdamW(model.parameters(), lr=settings.learning_rate)
    for epoch in range(settings.epochs):
        loss = train_epoch(model, train_loader, criterion, optimizer, epoch)
    print(f"validation accuracy {evaluate(model, validation_loader):.3f}")
    print(f"final loss {loss:.6f}")


if __name__ == "__main__":
    main()
