"""Memory that is kept is given back to the device in each step.

expect: exposed_syncs
planted: {EMPTYING_US / 1000:.2g} ms a step
"""

EMPTYING_US, STYLE = whole(600, 3000), one_of(*ON_DEVICE)
EMPTYING_NS = EMPTYING_US * 1000

# -- imports
import time

import torch
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, SequentialSampler, TensorDataset

import simgpu

# -- script
simgpu.device.set_costs_ns(30_000, 20_000, 0, 5_000)
simgpu.device.set_emptying_ns(EMPTYING_NS)
torch.manual_seed(0)
layers = [layer for _ in range(1) for layer in (nn.Linear(64, 64), nn.ReLU())]
model = nn.Sequential(*layers, nn.Linear(64, 1)).to("simgpu")
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, foreach=False)
data = TensorDataset(torch.randn(3200, 64), torch.randn(3200, 1))
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
    torch.simgpu.empty_cache()  # here
