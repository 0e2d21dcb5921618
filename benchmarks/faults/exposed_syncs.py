"""Each sample's loss is fetched by itself, for a table.

expect: exposed_syncs
planted: 16 values of {VALUE_US} us each fetched in each of {EVERY} steps
"""

VALUE_US, EVERY = whole(150, 400), one_of(1, 2)
STYLE, VALUE_NS = one_of(*ON_DEVICE), VALUE_US * 1000

# -- imports
import time

import torch
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, SequentialSampler, TensorDataset

import simgpu

# -- script
simgpu.device.set_costs_ns(300_000, 20_000, 0, VALUE_NS)
torch.manual_seed(0)
layers = [layer for _ in range(1) for layer in (nn.Linear(64, 64), nn.ReLU())]
model = nn.Sequential(*layers, nn.Linear(64, 1)).to("simgpu")
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, foreach=False)
data = TensorDataset(torch.randn(3200, 64), torch.randn(3200, 1))
seen = []
step = 0
for x, y in DataLoader(
    data, batch_size=None, sampler=BatchSampler(SequentialSampler(data), 16, True)
):
    x, y = x.to("simgpu", non_blocking=True), y.to("simgpu", non_blocking=True)
    predicted = model(x)
    losses = nn.functional.mse_loss(predicted, y, reduction="none")
    optimizer.zero_grad()
    losses.mean().backward()
    optimizer.step()
    step += 1
    if step % EVERY == 0:
        for row in losses.detach().flatten():
            seen.append(row.item())  # here
