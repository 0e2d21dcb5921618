"""Trains a small convolutional network to tell from which of eight photographs a tile was cut.

    python sample_scripts/train.py configs/example_config.py [key=value ...]

What a profiler should find: training waits for its data, about four fifths of the time. Half of
the wait is asleep (in `read_picture`, which stands in for slow storage), most of the other half is
a loop in pure Python over every value of every pixel (`brighten`), and decoding the JPEGs is the
small rest. With num_workers=0 the training process does it all itself, between the steps. The
blocking `.to(device)` and the `loss.item()` of each step cost nothing on a CPU; on a GPU they make
the host wait.
"""

import random
import runpy
import sys
import time

import torch
from overrides import override
from pictures import list_pictures
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset
from tqdm import tqdm
from truth import truth


class Pictures(Dataset):
    """JPEG files, decoded each time they are asked for; augmented if they are to train on."""

    def __init__(self, pictures, crop, storage_delay_s, augment):
        self.pictures = pictures
        self.crop = crop
        self.storage_delay_s = storage_delay_s
        self.augment = augment

    def __len__(self):
        return len(self.pictures)

    def __getitem__(self, index):
        path, label = self.pictures[index]
        picture = self.read_picture(path)
        left = top = (picture.width - self.crop) // 2
        if self.augment:
            left, top = random.randint(0, 2 * left), random.randint(0, 2 * top)
        picture = picture.crop((left, top, left + self.crop, top + self.crop))
        if self.augment:
            picture = brighten(picture, factor=random.uniform(0.7, 1.3))
        pixels = torch.frombuffer(bytearray(picture.tobytes()), dtype=torch.uint8)
        return pixels.view(self.crop, self.crop, 3).permute(2, 0, 1) / 127.5 - 1, label

    def read_picture(self, path):
        with truth("slow_storage"):
            time.sleep(self.storage_delay_s)
        return Image.open(path).convert("RGB")


@truth("brighten")
def brighten(picture, factor):
    """Scales every value of every pixel, one at a time; Pillow's ImageEnhance would not be felt."""
    values = bytes(min(255, int(value * factor)) for value in picture.tobytes())
    return Image.frombytes("RGB", picture.size, values)


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
def train_epoch(model, loader, criterion, optimizer, device):
    progress = tqdm(truth.batches(loader), desc="train")
    for images, labels in progress:
        images, labels = images.to(device), labels.to(device)
        loss = criterion(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        truth.count("steps")
        progress.set_postfix(loss=loss.item())
    return loss.item()


@truth("evaluation")
@torch.no_grad()
def evaluate(model, loader, device):
    model.eval()
    right = total = 0
    for images, labels in loader:
        images, labels = images.to(device), labels.to(device)
        right += (model(images).argmax(dim=1) == labels).sum().item()
        total += len(labels)
    model.train()
    return right / total


def main():
    if len(sys.argv) < 2:
        sys.exit("usage: python train.py CONFIG.py [key=value ...]")
    config = override(runpy.run_path(sys.argv[1])["config"], sys.argv[2:])
    random.seed(config.seed)
    torch.manual_seed(config.seed)
    device = "cuda" if torch.cuda.is_available() else "cpu"

    train_pictures, validation_pictures = list_pictures()
    train_loader = DataLoader(
        Pictures(
            train_pictures[: config.pictures], config.crop, config.storage_delay_s, augment=True
        ),
        batch_size=config.batch_size,
        shuffle=True,
        num_workers=config.num_workers,
    )
    validation_loader = DataLoader(
        Pictures(validation_pictures, config.crop, config.storage_delay_s, augment=False),
        batch_size=config.batch_size,
        num_workers=config.num_workers,
    )
    model = build_model(config.width).to(device)
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.AdamW(model.parameters(), lr=config.learning_rate)

    for epoch in range(config.epochs):
        loss = train_epoch(model, train_loader, criterion, optimizer, device)
        accuracy = evaluate(model, validation_loader, device)
        print(f"epoch {epoch}: loss {loss:.4f}, validation accuracy {accuracy:.3f}")
    print(f"final loss {loss:.6f}")


if __name__ == "__main__":
    main()
