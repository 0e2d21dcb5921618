"""The model does something in Python for each sample, and the device waits for it.

expect: python_in_model
planted: {PYTHON_MS} ms of Python in each forward
"""

PYTHON_MS, STYLE = whole(8, 16), one_of(*ON_DEVICE)
PYTHON_S = PYTHON_MS / 1000

# -- imports
import time

import torch
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, SequentialSampler, TensorDataset

import simgpu

# -- script
simgpu.device.set_costs_ns(5_000, 20_000, 0, 5_000)
torch.manual_seed(0)


class Weights(nn.Module):
    def forward(self, x):
        until = time.thread_time() + PYTHON_S  # here
        while time.thread_time() < until:  # here
            weight = sum(1 / (k + 1) for k in range(50))  # here
        return x * weight


layers = [nn.Linear(64, 64), Weights()]
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
