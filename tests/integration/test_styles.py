"""The loops that people write, on real torch: right counts, and a planted cost found again.

Every script sleeps for a while in one place, times that place itself, and prints the truth.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from support.styles import Style, prove

STYLES = {
    "plain loop with evaluation": Style(
        """
model = make_model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
train, validation = make_loader(), make_loader(3)
for epoch in range(2):
    for x, y in train:
        with timed("forward"):
            p = model(x)
        optimizer.zero_grad(); mse(p, y).backward(); optimizer.step()
    model.eval()
    with torch.no_grad(), timed("evaluation"):
        total = sum(mse(model(x), y).item() for x, y in validation)
    model.train()
""",
        *(12, 12, 2, 6),
        key="evaluation",
        roles=("training", "evaluation"),
        without=(),
    ),
    "evaluation inside the epoch, left by break": Style(
        """
model = make_model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
train, validation = make_loader(12), make_loader(9)
for step, (x, y) in enumerate(train):
    with timed("forward"):
        p = model(x)
    optimizer.zero_grad(); mse(p, y).backward(); optimizer.step()
    if step % 4 == 3:
        with torch.no_grad():
            for number, (x, y) in enumerate(validation):
                mse(model(x), y)
                if number == 1:
                    break
""",
        *(12, 12, 1, 6),
        roles=("training", "evaluation"),
        without=(),
    ),
    "accumulation": Style(
        """
model = make_model()
optimizer = torch.optim.AdamW(model.parameters())
for epoch in range(2):
    for number, (x, y) in enumerate(make_loader(8)):
        with timed("forward"):
            p = model(x)
        (mse(p, y) / 4).backward()
        if number % 4 == 3:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step(); optimizer.zero_grad()
""",
        *(4, 16, 2),
    ),
    "GAN": Style(
        """
g, d = make_model(), nn.Linear(1, 1)
optimizer_g, optimizer_d = torch.optim.Adam(g.parameters()), torch.optim.Adam(d.parameters())
for epoch in range(2):
    for x, y in make_loader():
        with timed("forward"):
            fake = g(x)
            real_score, fake_score = d(y), d(fake.detach())
        optimizer_d.zero_grad(); (fake_score - real_score).mean().backward(); optimizer_d.step()
        with timed("forward"):
            score = d(fake)
        optimizer_g.zero_grad(); (-score).mean().backward(); optimizer_g.step()
""",
        *(12, 12, 2),
    ),
    "GradScaler that skips a step": Style(
        """
model = make_model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
stepped = 0
optimizer.register_step_post_hook(lambda *_: globals().update(stepped=stepped + 1))
for number, (x, y) in enumerate(make_loader()):
    with timed("forward"):
        p = model(x)
    loss = mse(p, y) * (float("inf") if number == 2 else 1.0)
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
assert stepped == 5, stepped
""",
        *(6, 6, 1),
    ),
    "no loader": Style(
        """
model = make_model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
x, y = torch.randn(4, 8), torch.randn(4, 1)
for step in range(10):
    with timed("forward"):
        p = model(x)
    optimizer.zero_grad(); mse(p, y).backward(); optimizer.step()
    if step in (4, 9):
        model.eval()
        with torch.no_grad():
            model(x)
        model.train()
""",
        *(10, 10, 0),
        roles=(),
        without=("data_wait", "first_batch"),
    ),
    "LBFGS": Style(
        """
model = make_model()
optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3)
for x, y in make_loader(4):
    def closure():
        optimizer.zero_grad()
        with timed("forward"):
            p = model(x)
        loss = mse(p, y)
        loss.backward()
        return loss
    optimizer.step(closure)
""",
        *(4, 4, 1),
    ),
    "closure": Style(
        """
model = make_model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for epoch in range(2):
    for x, y in make_loader():
        def closure():
            optimizer.zero_grad()
            with timed("forward"):
                p = model(x)
            loss = mse(p, y)
            loss.backward()
            return loss
        optimizer.step(closure)
""",
        *(12, 12, 2),
    ),
    "optimizer in the backward": Style(
        """
model = make_model()
optimizers = {p: torch.optim.SGD([p], lr=0.01) for p in model.parameters()}
for p in model.parameters():
    def update(p):
        optimizers[p].step()
        optimizers[p].zero_grad()
    p.register_post_accumulate_grad_hook(update)
for epoch in range(2):
    for x, y in make_loader():
        with timed("forward"):
            p = model(x)
        mse(p, y).backward()
""",
        *(12, 12, 2),
    ),
    "activation checkpointing": Style(
        """
from torch.utils.checkpoint import checkpoint

class Inner(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = make_model()
    def forward(self, x):
        with timed(phase):
            return self.layer(x)

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.head = Inner(), nn.Linear(1, 1)
    def forward(self, x):
        return self.head(checkpoint(self.inner, x, use_reentrant=False))

model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for x, y in make_loader():
    phase = "inside"
    with timed("forward"):
        p = model(x)
    phase = "recompute"
    optimizer.zero_grad(); mse(p, y).backward(); optimizer.step()
""",
        *(6, 6, 1),
    ),
    "a compiled model": Style(
        """
class SlowLoss(nn.MSELoss):
    def forward(self, p, y):
        time.sleep(0.004)
        return super().forward(p, y)

model, criterion = torch.compile(nn.Linear(8, 1), backend="aot_eager"), SlowLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for epoch in range(2):
    for x, y in make_loader():
        p = model(x)  # compiles, the first time
        with timed("loss"):
            loss = criterion(p, y)
        optimizer.zero_grad(); loss.backward(); optimizer.step()
""",
        *(12, 12, 2),
        key="loss",
        without=("evaluation", "recompute"),
    ),
    "a whole step compiled": Style(
        """
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

@torch.compile(backend="eager")
def step(x, y):
    mse(model(x), y).backward()
    optimizer.step()
    optimizer.zero_grad()

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    for epoch in range(2):
        for x, y in make_loader():
            step(x, y)
""",
        *(12, 12, 2),
        key=None,
        source="optimizer",
    ),
    "parameters updated by hand": Style(
        """
w = torch.zeros(8, 1, requires_grad=True)
for epoch in range(2):
    for x, y in make_loader():
        with timed("loss"):
            loss = mse(x @ w, y)
        (gradient,) = torch.autograd.grad(loss, w)
        with torch.no_grad():
            w -= 0.01 * gradient
""",
        *(12, 12, 2),
        key="loss",
        source="backward",
    ),
    "persistent workers": Style(
        """
model = make_model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
loader = make_loader(num_workers=1, persistent_workers=True)
for epoch in range(3):
    for x, y in loader:
        with timed("forward"):
            p = model(x)
        optimizer.zero_grad(); mse(p, y).backward(); optimizer.step()
""",
        *(18, 18, 3),
    ),
    "IterableDataset": Style(
        """
class Stream(IterableDataset):
    def __iter__(self):
        for _ in range(22):
            time.sleep(0.002)
            yield torch.randn(8), torch.randn(1)

model = make_model(0)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
iterator = None
for epoch in range(2):
    iterator = iter(DataLoader(Stream(), batch_size=4))
    x, y = next(iterator)
    while True:
        p = model(x)
        optimizer.zero_grad(); mse(p, y).backward(); optimizer.step()
        started = time.perf_counter()
        try:
            x, y = next(iterator)
        except StopIteration:
            break
        truth["data_wait"] += time.perf_counter() - started
        counts["data_wait"] += 1
""",
        *(12, 12, 2),
        key="data_wait",
    ),
    "an endless loader": Style(
        """
def endless(loader):
    while True:
        yield from loader

model = make_model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
batches = endless(make_loader(5))
for step in range(15):
    x, y = next(batches)
    with timed("forward"):
        p = model(x)
    optimizer.zero_grad(); mse(p, y).backward(); optimizer.step()
""",
        *(15, 15, 3),
    ),
    "next(iter(loader)) each step": Style(
        """
model = make_model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
loader, validation = make_loader(5, shuffle=True), make_loader(2)
for step in range(12):
    x, y = next(iter(loader))
    with timed("forward"):
        p = model(x)
    optimizer.zero_grad(); mse(p, y).backward(); optimizer.step()
    if step % 6 == 5:
        with torch.no_grad():
            x, y = next(iter(validation))
            model(x)
""",
        *(12, 12, 12, 2),
        roles=("training", "evaluation"),
        without=("data_wait",),
    ),
    "a loader in a prefetch thread": Style(
        """
import queue, threading

def prefetched(loader):
    ready = queue.Queue(2)
    def fill():
        for batch in loader:
            ready.put(batch)
        ready.put(None)
    thread = threading.Thread(target=fill)
    thread.start()
    while (batch := ready.get()) is not None:
        yield batch
    thread.join()

model = make_model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
loader = make_loader()
for epoch in range(2):
    for x, y in prefetched(loader):
        with timed("forward"):
            p = model(x)
        optimizer.zero_grad(); mse(p, y).backward(); optimizer.step()
""",
        *(12, 12, 2),
        without=("evaluation", "data_wait", "first_batch"),
    ),
    "two phases with two optimizers": Style(
        """
model = make_model()
for phase, epochs in ((torch.optim.SGD, 1), (torch.optim.AdamW, 2)):
    optimizer = phase(model.parameters(), lr=0.01)
    for epoch in range(epochs):
        for x, y in make_loader():
            with timed("forward"):
                p = model(x)
            optimizer.zero_grad(); mse(p, y).backward(); optimizer.step()
""",
        *(18, 18, 3),
    ),
    "a peek, statistics, a teacher, and the accuracy on the training set": Style(
        """
model, teacher = make_model(), make_model()
teacher.eval()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
loader = make_loader()
x, y = next(iter(loader))
mean = sum(x.mean() for x, _ in loader) / 6
for epoch in range(2):
    for x, y in loader:
        with torch.no_grad(), timed("forward"):
            goal = teacher(x)
        with timed("forward"):
            p = model(x)
        optimizer.zero_grad(); mse(p, goal).backward(); optimizer.step()
    with torch.no_grad():
        for x, y in loader:
            model(x)
""",
        *(12, 12, 2, 12),
        without=(),
    ),
    "inference alone": Style(
        """
model = make_model().eval()
with torch.no_grad(), timed("evaluation"):
    for x, y in make_loader(12):
        model(x)
""",
        *(0, 0, 0, 12),
        key="evaluation",
        source="none",
        roles=("evaluation",),
        without=("forward",),
    ),
}

CASES = [
    pytest.param(style, id=name, marks=pytest.mark.proves("Updates and loops", name))
    for name, style in STYLES.items()
]


@pytest.mark.parametrize("style", CASES)
def test_counts_and_a_planted_cost(style: Style, tmp_path: Path) -> None:
    prove(style, tmp_path)
