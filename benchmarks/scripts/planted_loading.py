"""Trains on batches whose cost is known; `free` makes them cost nothing, by hand.

    python planted_loading.py real|free WORKERS ASLEEP_MS BUSY_MS COMPUTE [STEPS]

Each batch sleeps and works for so many ms, computing is a network of so many layers of 256; `4ms`
instead of layers: one layer, and so much sleep, which takes as long on any machine at any time.
Prints what a steady step took, in ms.
"""

import sys
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

BATCH, KEPT, EPOCHS = 64, 64, 3


def burn(seconds):
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


class Planted(Dataset):
    def __init__(self, batches, asleep_s, busy_s):
        self.batches, self.asleep_s, self.busy_s = batches, asleep_s, busy_s

    def __len__(self):
        return self.batches

    def __getitem__(self, index):
        time.sleep(self.asleep_s)
        burn(self.busy_s)
        return torch.rand(BATCH, 256)


def main():
    mode, workers, asleep_ms, busy_ms, computing = sys.argv[1:6]
    asleep_s = float(computing[:-2]) / 1e3 if computing.endswith("ms") else 0.0
    layers = 1 if asleep_s else int(computing)
    steps = int(sys.argv[6]) if len(sys.argv) > 6 else 150
    torch.manual_seed(0)
    torch.set_num_threads(1)
    layered = [layer for _ in range(layers) for layer in (nn.Linear(256, 256), nn.ReLU())]
    model = nn.Sequential(*layered, nn.Linear(256, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    data = Planted(steps, float(asleep_ms) / 1e3, float(busy_ms) / 1e3)
    loader = DataLoader(data, batch_size=None, num_workers=int(workers))
    kept = [torch.rand(BATCH, 256) for _ in range(KEPT)]
    took = []
    for _ in range(EPOCHS):
        batches = loader if mode == "real" else (kept[k % KEPT] for k in range(steps))
        before = time.perf_counter()
        for batch in batches:
            loss = model(batch).square().mean()
            time.sleep(asleep_s)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            now = time.perf_counter()
            took.append(now - before)
            before = now
    steady = took[20:]
    print(f"{1e3 * sum(steady) / len(steady):.4f} ms")


if __name__ == "__main__":
    main()
