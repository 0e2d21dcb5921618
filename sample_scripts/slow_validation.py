"""Tells tiles of eight photographs apart; the training set is in memory, the validation set is not.

    python sample_scripts/slow_validation.py [key=value ...]

What a profiler should find: evaluation takes more than 30 % of the run, and within it the
validation loader takes nearly all. Somebody decoded the training pictures once and kept them; the
validation pictures are read from slow storage (a sleep stands in for it) and decoded again after
each epoch, one by one. Training itself hardly waits.
"""

import sys
import time
from dataclasses import dataclass

import torch
from overrides import override
from pictures import list_pictures
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset
from truth import truth


@dataclass
class Settings:
    epochs: int = 5
    batch_size: int = 16
    learning_rate: float = 2e-3
    width: int = 32  # channels of the first convolution
    pictures: int = 320  # to train on, of the 320 there are
    storage_delay_s: float = 0.015  # what slow storage adds to reading one picture
    seed: int = 1337


def decode(path):
    picture = Image.open(path).convert("RGB")
    pixels = torch.frombuffer(bytearray(picture.tobytes()), dtype=torch.uint8)
    return pixels.view(picture.height, picture.width, 3).permute(2, 0, 1) / 127.5 - 1


def decode_once(pictures):
    images = torch.stack([decode(path) for path, _ in pictures])
    return TensorDataset(images, torch.tensor([label for _, label in pictures]))


class PicturesOnSlowStorage(Dataset):
    def __init__(self, pictures, delay_s):
        self.pictures = pictures
        self.delay_s = delay_s

    def __len__(self):
        return len(self.pictures)

    def __getitem__(self, index):
        path, label = self.pictures[index]
        with truth("slow_storage"):
            time.sleep(self.delay_s)
        return decode(path), label


def build_model(width, classes=8):
    return nn.Sequential(
        nn.Conv2d(3, width, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Conv2d(width, 2 * width, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Conv2d(2 * width, 4 * width, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(4 * width, classes),
    )


@truth("training")
def train_epoch(model, loader, criterion, optimizer):
    for images, labels in truth.batches(loader):
        loss = criterion(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        truth.count("steps")
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
    train_pictures, validation_pictures = list_pictures()
    train_set = decode_once(train_pictures[: settings.pictures])
    validation_set = PicturesOnSlowStorage(validation_pictures, settings.storage_delay_s)
    train_loader = DataLoader(train_set, batch_size=settings.batch_size, shuffle=True)
    validation_loader = DataLoader(validation_set, batch_size=1)

    model = build_model(settings.width)
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.AdamW(model.parameters(), lr=settings.learning_rate)
    for epoch in range(settings.epochs):
        loss = train_epoch(model, train_loader, criterion, optimizer)
        accuracy = evaluate(model, validation_loader)
        print(f"epoch {epoch}: loss {loss:.4f}, validation accuracy {accuracy:.3f}")
    print(f"final loss {loss:.6f}")


if __name__ == "__main__":
    main()
