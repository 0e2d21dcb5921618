"""Healthy scripts that call modules in ways that look like faults."""

from __future__ import annotations

from dataclasses import replace

from planted.calls import IN_ONE_FUNCTION, accumulating, beside, called
from planted.draw import Draw
from planted.script import EVERYWHERE, Case, Parts, as_ms, script

_UNROLLED = """\
class Cell(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.state = nn.Linear({features}, 32), nn.Linear(32, 32)
        self.out = nn.Linear(32, 1)

    def forward(self, x, h):
        time.sleep(0.0005)
        h = torch.tanh(self.inner(x) + self.state(h))
        return self.out(h), h


def unrolled(cell, x):
    h = torch.zeros(1, 32)
    for part in x.view(-1, {features}):
        out, h = cell(part[None], h)
    return out
"""


def cells_by_hand(draw: Draw) -> Case:
    """Batches of one sequence on purpose, of which a cell gets a row at a time."""
    features, style = draw.one_of((4, 2)), draw.one_of(EVERYWHERE)
    parts = Parts(
        loader="DataLoader(samples(150), batch_size=1, shuffle=True)",
        definitions=_UNROLLED.format(features=features),
        model="Cell()",
        epochs=1,
    )
    files = called(script(style, parts), "unrolled({model}, x), y")
    planted = f"a cell called {64 // features} times, each with what it gave before"
    return Case("cells_by_hand", planted, style, files)


_ACTING = """\
def rewarded(policy, seen):
    chosen = []
    for _ in range({rounds}):
        out = policy(seen[:1])
        chosen.append(out)
        seen = torch.roll(seen, 1, 1) + 0.1 * out.item()
    return torch.cat(chosen).mean(0, keepdim=True)
"""


def acting_one_by_one(draw: Draw) -> Case:
    """A policy that acts on one observation at a time, each of which comes of its last act."""
    rounds, style = draw.whole(16, 40), draw.one_of(EVERYWHERE)
    parts = Parts(
        loader="DataLoader(samples(150), batch_size=1)",
        definitions=_ACTING.format(rounds=rounds),
        compute_s=0.0005,
        epochs=1,
    )
    files = called(script(style, parts), "rewarded({model}, x), y")
    planted = f"{rounds} acts of a policy, one by one"
    return Case("acting_one_by_one", planted, style, files)


def target_by_module(draw: Draw) -> Case:
    """A module without parameters makes what training learns from, of what the model gave."""
    compute_s = draw.between(0.006, 0.012)
    seconds, style = compute_s * draw.between(0.3, 1.0), draw.one_of(EVERYWHERE)
    files = called(
        script(style, beside(compute_s, seconds)),
        "(out := {model}(x)), y + 0.1 * SLOW(out.detach())",
    )
    planted = f"{as_ms(seconds)} for the target of a loss"
    return Case("target_by_module", planted, style, files)


def rare_metric(draw: Draw) -> Case:
    """A metric that comes once in many steps."""
    compute_s, every = draw.between(0.008, 0.012), draw.one_of((30, 45))
    parts = replace(
        beside(compute_s, compute_s),
        each_step=f"if step % {every} == 0:\n    SLOW(model.given.detach(), y)",
    )
    style = draw.one_of(IN_ONE_FUNCTION)
    planted = f"a metric each {every} steps"
    return Case("rare_metric", planted, style, script(style, parts))


def averaged_once(draw: Draw) -> Case:
    """Ranks that average gradients after the last batch of each update alone."""
    every = draw.one_of((4, 2))
    files = script("ranks", accumulating(draw.one_of((4096, 8192)), every))
    told = f"""\
        own = contextlib.nullcontext() if step % {every} == {every - 1} else model.no_sync()
            with own:
                loss = nn.functional.mse_loss(model(x), y)
                (loss / {every}).backward()
"""
    before = f"""\
        loss = nn.functional.mse_loss(model(x), y)
            (loss / {every}).backward()
"""
    files = {
        name: "import contextlib\n" + text.replace(before, told) for name, text in files.items()
    }
    assert "no_sync" in files["train.py"]
    planted = f"{every} batches an update, averaged once"
    return Case("averaged_once", planted, "ranks", files)
