"""Two workers make the batches; the step takes about as long as a batch."""

import stopwatch  # isort: skip
import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

steps = int(sys.argv[1])
torch.manual_seed(0)
torch.set_num_threads(1)


class Noise(Dataset):
    """Images that cost a little arithmetic each."""

    def __len__(self):
        return 16 * steps

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        image = torch.randn(3, 32, 32, generator=generator)
        return (image - image.mean()) / image.std(), index % 10


if __name__ == "__main__":
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(256, 10)
    )
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for inputs, targets in stopwatch.timed(DataLoader(Noise(), batch_size=16, num_workers=2)):
        optimizer.zero_grad()
        loss = criterion(model(inputs), targets)
        loss.backward()
        optimizer.step()
        loss.item()
