"""Trains two networks against each other to draw digits: two optimizers, batches in pairs.

    python sample_scripts/gan.py [key=value ...]

What a profiler should find: nothing to change, and the right counts. Gradients of two batches are
added up before the discriminator and the generator take one step each, so two iterations and two
optimizer calls make one step (an epoch of 28 batches has 14). Forward, backward and optimizer are
timed, and making noise and targets; a span of `optimizer` is both calls.
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
    epochs: int = 10
    batch_size: int = 64
    accumulate: int = 2  # batches to one step
    learning_rate: float = 2e-4
    noise: int = 32  # numbers the generator draws from
    width: int = 64  # channels
    samples: int = 1792  # to train on, of the 1797 digits
    seed: int = 1337


def build_generator(noise, width):
    return nn.Sequential(
        nn.Linear(noise, 4 * width),
        nn.Unflatten(1, (width, 2, 2)),
        nn.ConvTranspose2d(width, width, 4, stride=2, padding=1),
        nn.ReLU(),
        nn.ConvTranspose2d(width, width, 4, stride=2, padding=1),
        nn.ReLU(),
        nn.Conv2d(width, 1, 3, padding=1),
        nn.Sigmoid(),
    )


def build_discriminator(width):
    return nn.Sequential(
        nn.Conv2d(1, width, 3, padding=1),
        nn.LeakyReLU(0.2),
        nn.Conv2d(width, width, 4, stride=2, padding=1),
        nn.LeakyReLU(0.2),
        nn.Flatten(),
        nn.Linear(16 * width, 1),
    )


@truth("training")
def train_epoch(generator, discriminator, optimizer_g, optimizer_d, loader, settings):
    criterion = nn.BCEWithLogitsLoss()
    for batch, (images,) in enumerate(truth.batches(loader), start=1):
        with truth("targets"):
            noise = torch.randn(len(images), settings.noise)
            real, drawn = torch.ones(len(images), 1), torch.zeros(len(images), 1)

        with truth("forward"):
            drawings = generator(noise)
            score_real, score_drawn = discriminator(images), discriminator(drawings.detach())
        loss_d = criterion(score_real, real) + criterion(score_drawn, drawn)
        share_d = loss_d / settings.accumulate
        with truth("backward"):
            share_d.backward()

        with truth("freezing"):
            discriminator.requires_grad_(False)
        with truth("forward"):
            score = discriminator(drawings)
        loss_g = criterion(score, real)
        share_g = loss_g / settings.accumulate
        with truth("backward"):
            share_g.backward()
        with truth("freezing"):
            discriminator.requires_grad_(True)

        if batch % settings.accumulate == 0:
            with truth("optimizer"):
                optimizer_d.step()
                optimizer_g.step()
            optimizer_d.zero_grad()
            optimizer_g.zero_grad()
            truth.count("steps")
    return loss_d.item(), loss_g.item()


def main():
    settings = override(Settings(), sys.argv[1:])
    torch.manual_seed(settings.seed)
    images = torch.tensor(load_digits().images[: settings.samples], dtype=torch.float32) / 16
    dataset = TensorDataset(images.unsqueeze(1))
    loader = DataLoader(dataset, batch_size=settings.batch_size, shuffle=True)

    generator = build_generator(settings.noise, settings.width)
    discriminator = build_discriminator(settings.width)
    optimizer_g = torch.optim.Adam(
        generator.parameters(), lr=settings.learning_rate, betas=(0.5, 0.999)
    )
    optimizer_d = torch.optim.Adam(
        discriminator.parameters(), lr=settings.learning_rate, betas=(0.5, 0.999)
    )
    for epoch in range(settings.epochs):
        loss_d, loss_g = train_epoch(
            generator, discriminator, optimizer_g, optimizer_d, loader, settings
        )
        print(f"epoch {epoch}: discriminator {loss_d:.4f}, generator {loss_g:.4f}")
    print(f"final loss {loss_g:.6f}")


if __name__ == "__main__":
    main()
