"""The ways in which scripts feed their loops, on real torch: right counts, and right waits.

Every script waits for its data in one place, times that itself, and prints the truth.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from support.styles import PREAMBLE, Style, prove, styles_in

# What is timed is the loop's own `next`, or where that would change the loop, the fetch in it; the
# first batch of a pass is apart.
WAITS = (
    PREAMBLE
    + """
import itertools

WAIT_S = 0.04

class Waiting(Dataset):
    def __init__(self, batches=6):
        self.samples = 4 * batches

    def __len__(self):
        return self.samples

    def __getitem__(self, index):
        if index % 4 == 0:
            self.wait(index)
        return torch.full((8,), index / 100), torch.full((1,), index / 100)

    def wait(self, index):
        time.sleep(WAIT_S)

class Timed(Waiting):
    def wait(self, index):
        with timed("data_wait" if index else "first_batch"):
            time.sleep(WAIT_S)

def timed_next(batches):
    iterator = iter(batches)
    for number in itertools.count():
        started = time.perf_counter()
        try:
            batch = next(iterator)
        except StopIteration:
            return
        if number:
            truth["data_wait"] += time.perf_counter() - started
            counts["data_wait"] += 1
        yield batch

model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

def train(x, y):
    optimizer.zero_grad()
    mse(model(x), y).backward()
    optimizer.step()

"""
)

LOADERS = """
# ====
# ---- workers started by fork | 12 12 2
if __name__ == "__main__":
    loader = DataLoader(Waiting(), 4, num_workers=1, multiprocessing_context="fork")
    for epoch in range(2):
        for x, y in timed_next(loader):
            train(x, y)
# ---- workers started by spawn | 6 6 1
if __name__ == "__main__":
    loader = DataLoader(Waiting(), 4, num_workers=1, multiprocessing_context="spawn")
    for epoch in range(1):
        for x, y in timed_next(loader):
            train(x, y)
# ---- workers started by forkserver | 6 6 1
if __name__ == "__main__":
    loader = DataLoader(Waiting(), 4, num_workers=1, multiprocessing_context="forkserver")
    for epoch in range(1):
        for x, y in timed_next(loader):
            train(x, y)

# ====
# ---- persistent workers | 18 18 3
loader = DataLoader(Waiting(), 4, num_workers=2, persistent_workers=True)
for epoch in range(3):
    for x, y in timed_next(loader):
        train(x, y)
# ---- epochs with workers and without, in turn | 24 24 4
dataset = Waiting()
for epoch in range(4):
    loader = DataLoader(dataset, 4, num_workers=epoch % 2)
    for x, y in timed_next(loader):
        train(x, y)
# ---- an IterableDataset split among workers | 12 12 2
class Stream(IterableDataset):
    def __iter__(self):
        worker = torch.utils.data.get_worker_info()
        for index in range(worker.id, 24, worker.num_workers):
            time.sleep(0.002)
            yield torch.full((8,), index / 100), torch.zeros(1)

for epoch in range(2):
    for x, y in timed_next(DataLoader(Stream(), 4, num_workers=2)):
        train(x, y)

# ====
# ---- an IterableDataset, asked by next | 12 12 2
class Stream(IterableDataset):
    def __iter__(self):
        for _ in range(22):
            time.sleep(0.002)
            yield torch.randn(8), torch.randn(1)

iterator = None
for epoch in range(2):
    iterator = iter(DataLoader(Stream(), batch_size=4))
    x, y = next(iterator)
    while True:
        train(x, y)
        started = time.perf_counter()
        try:
            x, y = next(iterator)
        except StopIteration:
            break
        truth["data_wait"] += time.perf_counter() - started
        counts["data_wait"] += 1
# ---- a custom batch sampler | 12 12 2
class Buckets:
    def __iter__(self):
        for start in range(0, 24, 4):
            yield list(range(start, start + 3))

for epoch in range(2):
    for x, y in timed_next(DataLoader(Waiting(), batch_sampler=Buckets())):
        train(x, y)
# ---- a custom collate function | 12 12 2
def collate(samples):
    time.sleep(WAIT_S)
    return torch.utils.data.default_collate(samples)

for epoch in range(2):
    for x, y in timed_next(make_loader(collate_fn=collate)):
        train(x, y)
# ---- pinned memory, without a device that needs it | 12 12 2
warnings.simplefilter("ignore")
for epoch in range(2):
    for x, y in timed_next(DataLoader(Waiting(), 4, pin_memory=True)):
        train(x, y)
# ---- no batching: batch_size=None | 12 12 2
class Batches(Waiting):
    def __getitem__(self, index):
        return super().__getitem__(4 * index)
    def __len__(self):
        return 6

for epoch in range(2):
    for x, y in timed_next(DataLoader(Batches(), batch_size=None)):
        train(x, y)
# ---- a subclass of DataLoader | 12 12 2
class Loader(DataLoader):
    def __init__(self, dataset, **options):
        super().__init__(dataset, batch_size=4, **options)
    def __iter__(self):
        for x, y in super().__iter__():
            yield x, y
    def __len__(self):
        raise AssertionError("nobody asked")

for epoch in range(2):
    for x, y in timed_next(Loader(Waiting())):
        train(x, y)

# ====
# ---- an endless sampler, one iterator for all epochs | 12 12 1
class Repeat:  # timm's
    def __init__(self, sampler):
        self.sampler = sampler
    def __iter__(self):
        while True:
            yield from iter(self.sampler)

class MultiEpochs(DataLoader):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self._DataLoader__initialized = False
        self.batch_sampler = Repeat(self.batch_sampler)
        self._DataLoader__initialized = True
        self.iterator = super().__iter__()
    def __len__(self):
        return len(self.batch_sampler.sampler)
    def __iter__(self):
        for _ in range(len(self)):
            yield next(self.iterator)

loader = MultiEpochs(Timed(), 4)
for epoch in range(2):
    for x, y in loader:
        train(x, y)
truth["data_wait"] += truth["first_batch"] / 2
counts["data_wait"] += 1
# ---- tqdm around a loader | 12 12 2
from tqdm import tqdm
for epoch in range(2):
    for number, (x, y) in enumerate(tqdm(DataLoader(Timed(), 4), disable=None)):
        train(x, y)
# ---- islice of a loader | 12 12 3
for epoch in range(3):
    for x, y in itertools.islice(DataLoader(Timed(9), 4), 4):
        train(x, y)
# ---- itertools.cycle over a loader | 15 6 1 | passes=6/6
# The loader makes six batches, which are kept and used again: the other steps come after it.
batches = itertools.cycle(DataLoader(Timed(), 4))
for step in range(15):
    x, y = next(batches)
    train(x, y)

# ====
# ---- two loaders, zipped, one of them endless | 12 12 2
def endless(loader):
    while True:
        yield from loader

labelled, unlabelled = DataLoader(Timed(), 4), DataLoader(Timed(4), 4)
for epoch in range(2):
    for (x, y), (z, _) in zip(labelled, endless(unlabelled)):
        optimizer.zero_grad()
        (mse(model(x), y) + model(z).abs().mean()).backward()
        optimizer.step()
# ---- a loader inside a dataset | 6 6 1
class Stored(Dataset):
    def __init__(self):
        self.inner = iter(DataLoader(Timed(), 4))
    def __len__(self):
        return 6
    def __getitem__(self, index):
        return next(self.inner)

for x, y in DataLoader(Stored(), batch_size=None):
    train(x, y)
# ---- a prefetcher that is one batch ahead | 12 12 2
class Ahead:
    def __init__(self, loader):
        self.loader = loader
    def __iter__(self):
        self.batches = iter(self.loader)
        self.fetch()
        while self.ready is not None:
            batch = self.ready
            self.fetch()
            yield batch
    def fetch(self):
        self.ready = next(self.batches, None)

for epoch in range(2):
    for x, y in Ahead(DataLoader(Timed(), 4)):
        train(x, y)

# ====
# ---- a worker that dies, and another try | 6 6 1 | key=forward
import multiprocessing, os

has_died = multiprocessing.Value("b", False)

class Deadly(Waiting):
    def __getitem__(self, index):
        if not has_died.value:
            has_died.value = True
            os._exit(7)
        return super().__getitem__(index)

model, optimizer = fresh()
loader = DataLoader(Deadly(), 4, num_workers=1)
for attempt in range(2):
    try:
        for x, y in loader:
            learn(model, optimizer, x, y)
    except RuntimeError as error:
        assert attempt == 0 and "exited unexpectedly" in str(error)
"""


@pytest.mark.parametrize("style", styles_in("Loaders", LOADERS, key="data_wait"))
def test_counts_and_waits(style: Style, tmp_path: Path) -> None:
    prove(style, tmp_path, preamble=WAITS)
