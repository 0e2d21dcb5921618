"""Batches are copied from plain memory, while the device waits.

expect: blocking_copies
planted: two copies of {COPY_US / 1000:.2g} ms a step
"""

COPY_US, OPERATION_US = whole(1500, 6000), whole(100, 250)
STYLE, COPY_NS, OPERATION_NS = one_of(*ON_DEVICE), COPY_US * 1000, OPERATION_US * 1000

# -- imports
import time

import torch
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, SequentialSampler, TensorDataset

import simgpu

# -- script
simgpu.device.set_costs_ns(OPERATION_NS, COPY_NS, 0, 5_000)
torch.manual_seed(0)
layers = [layer for _ in range(1) for layer in (nn.Linear(64, 64), nn.ReLU())]
model = nn.Sequential(*layers, nn.Linear(64, 1)).to("simgpu")
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, foreach=False)
data = TensorDataset(torch.randn(3200, 64), torch.randn(3200, 1))
step = 0
for x, y in DataLoader(
    data, batch_size=None, sampler=BatchSampler(SequentialSampler(data), 16, True)
):
    x, y = x.to("simgpu"), y.to("simgpu")  # here
    predicted = model(x)
    losses = nn.functional.mse_loss(predicted, y, reduction="none")
    optimizer.zero_grad()
    losses.mean().backward()
    optimizer.step()
    step += 1
