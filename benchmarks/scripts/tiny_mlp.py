"""A step of about 0.3 ms: the worst case for a profiler."""

import stopwatch  # isort: skip  (first, so that it sees the first line)
import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

steps = int(sys.argv[1])
torch.manual_seed(0)
torch.set_num_threads(1)
data = TensorDataset(torch.randn(32 * steps, 32), torch.randint(0, 10, (32 * steps,)))
loader = DataLoader(data, batch_sampler=[list(range(i, i + 32)) for i in range(0, 32 * steps, 32)])
model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 10))
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for inputs, targets in stopwatch.timed(loader):
    optimizer.zero_grad()
    loss = criterion(model(inputs), targets)
    loss.backward()
    optimizer.step()
    loss.item()
