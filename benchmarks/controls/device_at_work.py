"""A value is fetched in each step, and the device works for as long all the same.

planted: .item() each step on a device at work
"""

OPERATION_NS, STYLE = 1000 * whole(800, 2000), one_of(*ON_DEVICE)

# -- imports
import time

import torch
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, SequentialSampler, TensorDataset

import simgpu

# -- script
simgpu.device.set_costs_ns(OPERATION_NS, 20_000, 0, 5_000)
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
    if losses.mean().item() < 0:
        break
