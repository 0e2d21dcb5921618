"""A model of many small layers: the device is done with each sooner than the next one comes.

expect: launch_bound
planted: {LAYERS} layers, operators of {OPERATION_US} us
"""

LAYERS, OPERATION_US = whole(12, 24), whole(1, 4)
STYLE, OPERATION_NS = one_of(*ON_DEVICE), OPERATION_US * 1000

# -- imports
import time

import torch
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, SequentialSampler, TensorDataset

import simgpu

# -- script
simgpu.device.set_costs_ns(OPERATION_NS, 20_000, 0, 5_000)
torch.manual_seed(0)
layers = [layer for _ in range(LAYERS) for layer in (nn.Linear(64, 64), nn.ReLU())]
model = nn.Sequential(*layers, nn.Linear(64, 1)).to("simgpu")
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, foreach=False)
data = TensorDataset(torch.randn(12800, 64), torch.randn(12800, 1))
step = 0
for x, y in DataLoader(
    data, batch_size=None, sampler=BatchSampler(SequentialSampler(data), 16, True)
):
    x, y = x.to("simgpu", non_blocking=True), y.to("simgpu", non_blocking=True)
    predicted = model(x)  # here
    losses = nn.functional.mse_loss(predicted, y, reduction="none")
    optimizer.zero_grad()
    losses.mean().backward()
    optimizer.step()
    step += 1
