"""The loops that people write, on real torch: right counts, and a planted cost found again.

Every script sleeps for a while in one place, times that place itself, and prints the truth.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from support.styles import PREAMBLE, WITH_COMPILER, Style, prove, styles_in

NEED_COMPILER = ("torch.compile", "torch.utils.checkpoint", "torch.func")

# Each of the last ones needs a process of its own, for what it times or lacks.
LOOPS = """
# ====
# ---- accumulation | 4 16 2
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
# ---- GAN | 12 12 2
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
# ---- several losses, each with its backward | 12 12 2
model, head = make_model(), nn.Linear(1, 1)
optimizer = torch.optim.SGD([*model.parameters(), *head.parameters()], lr=0.01)
for epoch in range(2):
    for x, y in make_loader():
        with timed("forward"):
            p = model(x)
            q = head(p)
        optimizer.zero_grad()
        mse(p, y).backward(retain_graph=True)
        mse(q, y).backward()
        optimizer.step()
# ---- gradient penalty: a backward through a backward | 12 12 2
model, optimizer = fresh()
for epoch in range(2):
    for x, y in make_loader():
        x.requires_grad_()
        with timed("forward"):
            p = model(x)
        (gradient,) = torch.autograd.grad(p.sum(), x, create_graph=True)
        optimizer.zero_grad()
        (mse(p, y) + gradient.norm()).backward()
        optimizer.step()
# ---- several updates with each batch (PPO) | 36 12 2
model = make_model()
optimizer = torch.optim.Adam(model.parameters())
for epoch in range(2):
    for x, y in make_loader():
        for _ in range(3):
            learn(model, optimizer, x, y)
# ---- two phases with two optimizers | 18 18 3
model = make_model()
for phase, epochs in ((torch.optim.SGD, 1), (torch.optim.AdamW, 2)):
    optimizer = phase(model.parameters(), lr=0.01)
    for epoch in range(epochs):
        for x, y in make_loader():
            learn(model, optimizer, x, y)

# ====
# ---- LBFGS | 4 4 1
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
# ---- optimizer in the backward | 12 12 2
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
# ---- GradScaler that skips a step | 6 6 1
model, optimizer = fresh()
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
# ---- sharpness-aware: two passes for each update | 12 12 2
class SAM(torch.optim.Optimizer):
    def __init__(self, params, base, rho=0.05, **options):
        super().__init__(params, dict(rho=rho, **options))
        self.base = base(self.param_groups, **options)
        self.param_groups = self.base.param_groups
    @torch.no_grad()
    def first_step(self):
        for group in self.param_groups:
            for p in group["params"]:
                self.state[p]["old"] = p.clone()
                p.add_(p.grad, alpha=group["rho"])
        self.zero_grad()
    @torch.no_grad()
    def second_step(self):
        for group in self.param_groups:
            for p in group["params"]:
                p.copy_(self.state[p]["old"])
        self.base.step()
        self.zero_grad()
    def step(self, closure=None):
        raise NotImplementedError

model = make_model()
optimizer = SAM(model.parameters(), torch.optim.SGD, lr=0.01)
for epoch in range(2):
    for x, y in make_loader():
        with timed("forward"):
            p = model(x)
        mse(p, y).backward()
        optimizer.first_step()
        with timed("forward"):
            p = model(x)
        mse(p, y).backward()
        optimizer.second_step()
# ---- a wrapper around an optimizer (Lookahead) | 12 12 2
class Lookahead(torch.optim.Optimizer):
    def __init__(self, base, k=3, alpha=0.5):
        self.base, self.k, self.alpha, self.number = base, k, alpha, 0
        super().__init__(base.param_groups, {})
        self.slow = [p.detach().clone() for g in self.param_groups for p in g["params"]]
    def step(self, closure=None):
        loss = self.base.step(closure)
        self.number += 1
        if self.number % self.k == 0:
            fast = [p for g in self.param_groups for p in g["params"]]
            with torch.no_grad():
                for p, slow in zip(fast, self.slow):
                    slow += self.alpha * (p - slow)
                    p.copy_(slow)
        return loss

model = make_model()
optimizer = Lookahead(torch.optim.Adam(model.parameters()))
for epoch in range(2):
    for x, y in make_loader():
        learn(model, optimizer, x, y)

# ====
# ---- plain loop with evaluation | 12 12 2 6 | key=evaluation roles=training,evaluation without=
model, optimizer = fresh()
train, validation = make_loader(), make_loader(3)
for epoch in range(2):
    for x, y in train:
        learn(model, optimizer, x, y)
    model.eval()
    with torch.no_grad(), timed("evaluation"):
        total = sum(mse(model(x), y).item() for x, y in validation)
    model.train()
# ---- training batches evaluated, to a break or a count | 12 12 2 12 | key=evaluation without=
model, optimizer = fresh()
loader = make_loader()
for epoch in range(2):
    for x, y in loader:
        learn(model, optimizer, x, y)
    model.eval()
    with torch.no_grad(), timed("evaluation"):
        for number, (x, y) in enumerate(loader):
            if number == 3:
                break
            mse(model(x), y)
    with torch.no_grad(), timed("evaluation"):
        batches = iter(loader)
        for number in range(2):
            x, y = next(batches)
            mse(model(x), y)
    model.train()
# ---- so, inside an epoch | 12 12 2 12 | key=evaluation without=
model, optimizer = fresh()
loader = make_loader()
for epoch in range(2):
    for step, (x, y) in enumerate(loader):
        learn(model, optimizer, x, y)
        if step % 3 == 1:
            with torch.no_grad(), timed("evaluation"):
                for number, (x, y) in enumerate(loader):
                    if number == 2:
                        break
                    mse(model(x), y)
# ---- stochastic weight averaging, and its batch norms | 18 18 3 6 | key=evaluation without=
from torch.optim.swa_utils import SWALR, AveragedModel, update_bn

model = nn.Sequential(make_model(), nn.BatchNorm1d(1))
average = AveragedModel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
scheduler = SWALR(optimizer, swa_lr=0.005)
loader = make_loader()
for epoch in range(3):
    for x, y in loader:
        learn(model, optimizer, x, y)
    average.update_parameters(model)
    scheduler.step()
with timed("evaluation"):
    update_bn(loader, average)

# ====
# ---- no loader | 10 10 0 | roles= without=data_wait,first_batch
model, optimizer = fresh()
x, y = torch.randn(4, 8), torch.randn(4, 1)
for step in range(10):
    learn(model, optimizer, x, y)
    if step in (4, 9):
        model.eval()
        with torch.no_grad():
            model(x)
        model.train()
# ---- rollouts of reinforcement learning | 24 24 0 | roles= without=data_wait,first_batch
model = make_model(0.001)
optimizer = torch.optim.Adam(model.parameters())
for update in range(12):
    state, seen = torch.zeros(1, 8), []
    for move in range(5):
        with torch.no_grad(), timed("forward"):
            p = model(state)
        seen.append((state, p))
        state = torch.tanh(state + 0.1)
    states = torch.cat([s for s, _ in seen])
    for repeat in range(2):
        with timed("forward"):
            p = model(states)
        loss = mse(p, torch.ones_like(p))
        optimizer.zero_grad(); loss.backward(); optimizer.step()

# ====
# ---- a peek, statistics, a teacher, and the accuracy on the training set | 12 12 2 12 | without=
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
# ---- evaluation inside the epoch, left by break | 12 12 1 6 | roles=training,evaluation without=
model, optimizer = fresh()
train, validation = make_loader(12), make_loader(9)
for step, (x, y) in enumerate(train):
    learn(model, optimizer, x, y)
    if step % 4 == 3:
        with torch.no_grad():
            for number, (x, y) in enumerate(validation):
                mse(model(x), y)
                if number == 1:
                    break

# ====
# ---- functional training with torch.func | 12 12 2 | source=backward
from torch.func import functional_call, grad_and_value

model = make_model()
parameters = dict(model.named_parameters())

def loss_of(parameters, x, y):
    with timed("forward"):
        p = functional_call(model, parameters, (x,))
    return mse(p, y)

for epoch in range(2):
    for x, y in make_loader():
        gradients, loss = grad_and_value(loss_of)(parameters, x, y)
        parameters = {n: p - 0.01 * gradients[n] for n, p in parameters.items()}
# ---- a custom optimizer class | 12 12 2 | source=backward
class Descent:
    def __init__(self, parameters, lr):
        self.parameters, self.lr = list(parameters), lr
    def zero_grad(self):
        for p in self.parameters:
            p.grad = None
    @torch.no_grad()
    def step(self):
        for p in self.parameters:
            p -= self.lr * p.grad

model = make_model()
optimizer = Descent(model.parameters(), 0.01)
for epoch in range(2):
    for x, y in make_loader():
        learn(model, optimizer, x, y)

# ====
# ---- activation checkpointing | 6 6 1
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

# ====
# ---- a subclass of torch's Optimizer | 12 12 2 | key=optimizer
class Signs(torch.optim.Optimizer):
    def __init__(self, parameters, lr):
        super().__init__(parameters, {"lr": lr})
    @torch.no_grad()
    def step(self, closure=None):
        with timed("optimizer"):
            for group in self.param_groups:
                for p in group["params"]:
                    p -= group["lr"] * p.grad.sign()
            time.sleep(0.004)

model = make_model(0)
optimizer = Signs(model.parameters(), 0.01)
for epoch in range(2):
    for x, y in make_loader():
        p = model(x)
        optimizer.zero_grad(); mse(p, y).backward(); optimizer.step()

# ====
# ---- parts of a model compiled | 12 12 2 | key=loss without=evaluation,recompute
class SlowLoss(nn.MSELoss):
    def forward(self, p, y):
        time.sleep(0.004)
        return super().forward(p, y)

model, criterion = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1)), SlowLoss()
for number in (0, 2):
    model[number] = torch.compile(model[number], backend="aot_eager")
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for epoch in range(2):
    for x, y in make_loader():
        p = model(x)  # compiles, the first time
        with timed("loss"):
            loss = criterion(p, y)
        optimizer.zero_grad(); loss.backward(); optimizer.step()

# ====
# ---- a whole step compiled | 12 12 2 | key=
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

# ====
# ---- parameters updated by hand | 12 12 2 | key=loss source=backward
w = torch.zeros(8, 1, requires_grad=True)
for epoch in range(2):
    for x, y in make_loader():
        with timed("loss"):
            loss = mse(x @ w, y)
        (gradient,) = torch.autograd.grad(loss, w)
        with torch.no_grad():
            w -= 0.01 * gradient

# ====
# ---- next(iter(loader)) each step | 12 12 12 2 | roles=training,evaluation without=data_wait
model, optimizer = fresh()
loader, validation = make_loader(5, shuffle=True), make_loader(2)
for step in range(12):
    x, y = next(iter(loader))
    learn(model, optimizer, x, y)
    if step % 6 == 5:
        with torch.no_grad():
            x, y = next(iter(validation))
            model(x)

# ====
# ---- a loader in a prefetch thread | 12 12 2 | without=evaluation,data_wait,first_batch
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

model, optimizer = fresh()
loader = make_loader()
for epoch in range(2):
    for x, y in prefetched(loader):
        learn(model, optimizer, x, y)

# ====
# ---- inference alone | 0 0 0 12 | key=evaluation source=none roles=evaluation without=forward
model = make_model(0.02).eval()  # timed once, with what our log costs at its first loader
with torch.no_grad(), timed("evaluation"):
    for x, y in make_loader(12):
        model(x)
"""


@pytest.mark.parametrize("style", styles_in("Updates and loops", LOOPS))
def test_counts_and_a_planted_cost(style: Style, tmp_path: Path) -> None:
    needs_compiler = any(name in style.script for name in NEED_COMPILER)
    prove(style, tmp_path, preamble=WITH_COMPILER if needs_compiler else PREAMBLE)
