"""A step of about 2 ms, one thread; a second argument makes each step so many percent longer.

python benchmarks/scripts/two_ms.py STEPS [PERCENT] [ASLEEP_MS]

A third one makes it wait so long, as for a device that nothing else slows.
"""

import sys
import time

import torch
from torch import nn

steps = int(sys.argv[1])
percent = float(sys.argv[2]) if len(sys.argv) > 2 else 0.0
asleep_s = float(sys.argv[3]) / 1e3 if len(sys.argv) > 3 else 0.0
torch.manual_seed(0)
torch.set_num_threads(1)
inputs, targets = torch.randn(64, 256), torch.randint(0, 10, (64,))
model = nn.Sequential(
    nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10)
)
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)


def step():
    optimizer.zero_grad()
    loss = criterion(model(inputs), targets)
    loss.backward()
    optimizer.step()
    time.sleep(asleep_s)


for _ in range(steps):
    began = time.perf_counter()
    step()
    # Busy, as a slower step would be: a sleep would let the core rest.
    until = time.perf_counter() + (time.perf_counter() - began) * percent / 100
    while time.perf_counter() < until:
        pass
