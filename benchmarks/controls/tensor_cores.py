"""A device with tensor cores multiplies in TF32 all the time.

planted: TF32 on a device of capability 8.0, operators of {OPERATION_US} us
"""

OPERATION_US, STYLE = whole(800, 2000), one_of(*ON_DEVICE)
OPERATION_NS = 1000 * OPERATION_US

# -- imports
import time

import torch
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, SequentialSampler, TensorDataset

import simgpu

# -- script
simgpu.device.set_costs_ns(OPERATION_NS, 20_000, 0, 5_000)
torch.simgpu.get_device_capability = lambda index=None: (8, 0)
torch.set_float32_matmul_precision("high")
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1)).to("simgpu")
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
torch.accelerator.synchronize()
