"""A step of about 10 ms: small convolutions, one thread."""

import stopwatch  # isort: skip
import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

steps = int(sys.argv[1])
torch.manual_seed(0)
torch.set_num_threads(1)
data = TensorDataset(torch.randn(8 * steps, 3, 32, 32), torch.randint(0, 10, (8 * steps,)))
model = nn.Sequential(
    nn.Conv2d(3, 32, 3, padding=1),
    nn.ReLU(),
    nn.Conv2d(32, 32, 3, padding=1),
    nn.ReLU(),
    nn.AdaptiveAvgPool2d(4),
    nn.Flatten(),
    nn.Linear(512, 10),
)
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for inputs, targets in stopwatch.timed(DataLoader(data, batch_size=8)):
    optimizer.zero_grad()
    loss = criterion(model(inputs), targets)
    loss.backward()
    optimizer.step()
    loss.item()
