"""Modules that are called as they need not be: row by row, beside the model, averaged each time."""

from __future__ import annotations

import re
from dataclasses import replace

from planted.draw import Draw
from planted.script import EVERYWHERE, HERE, Case, Parts, as_ms, script
from planted.sizes import enough_steps, percent

_CALL = re.compile(r"(self\.)?\bmodel\(x\), y\)")
# Where the step's own names are known to what follows the update.
IN_ONE_FUNCTION = ("plain loop", "function", "class Trainer", "several files")


def called(files: dict[str, str], judged: str, ending: str = "") -> dict[str, str]:
    """Returns a script that judges its model otherwise.

    Args:
        files: Of the script.
        judged: What the loss is given instead of model(x) and y, with "{model}" for it.
        ending: Of the line.
    """

    def other(found: re.Match[str]) -> str:
        model = "self.model" if found[1] else "model"
        return f"{judged.format(model=model)}){ending}"

    return {name: _CALL.sub(other, text) for name, text in files.items()}


def forward_by_sample(draw: Draw) -> Case:
    """A loop hands each batch to the model row by row."""
    batch, each_s = draw.one_of((32, 16, 24)), draw.between(0.0003, 0.0008)
    style = draw.one_of(EVERYWHERE)
    parts = Parts(
        loader=f"DataLoader(samples({60 * batch}), batch_size={batch}, shuffle=True)",
        compute_s=each_s,
        epochs=2,
    )
    files = script(style, parts)
    judged = draw.one_of(
        (
            "torch.cat([{model}(one[None]) for one in x]), y",
            "torch.stack([{model}(one) for one in x]), y",
            "torch.cat([{model}(x[i : i + 1]) for i in range(len(x))]), y",
        )
    )
    files = called(files, judged, f"  {HERE}")
    planted = f"batches of {batch}, row by row, {as_ms(each_s)} each"
    return Case("forward_by_sample", planted, style, files, "forward_by_sample")


SLOW = """\
class Slow(nn.Module):
    def forward(self, *given):
        time.sleep({seconds:.6f})
        return given[0] + 0.1 * torch.randn_like(given[0])


SLOW = Slow()
"""
KEEPING = """\


class Keeping(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = build_model()
        self.given = None

    def forward(self, x):
        self.given = self.inner(x)
        return self.given
"""


def beside(compute_s: float, seconds: float) -> Parts:
    """Returns a model that keeps what it gave, and a module SLOW that has nothing to learn."""
    return Parts(
        loader=f"DataLoader(samples({enough_steps(seconds) * 8}), batch_size=8, shuffle=True)",
        compute_s=compute_s,
        definitions=SLOW.format(seconds=seconds) + KEEPING,
        model="Keeping()",
        epochs=2,
    )


def untrained_modules(draw: Draw) -> Case:
    """What prepares the model's input is a module that training calls, or it is a metric."""
    compute_s, share = draw.between(0.006, 0.012), draw.between(0.2, 0.5)
    seconds = compute_s * share / (1 - share)
    parts, is_data = beside(compute_s, seconds), draw.one_of((True, False))
    if is_data:
        style = draw.one_of(EVERYWHERE)
        parts = replace(parts, each_batch=f"x = SLOW(x)  {HERE}")
    else:
        style = draw.one_of(IN_ONE_FUNCTION)
        parts = replace(parts, each_step=f"SLOW(model.given.detach(), y)  {HERE}")
    what = "an augmentation ahead of" if is_data else "a metric behind"
    planted = f"{as_ms(seconds)} of {what} the model, {percent(share)} of a step"
    return Case(
        "untrained_modules",
        planted,
        style,
        script(style, parts),
        "untrained_modules",
        gain=1 / (1 - share),
    )


def accumulating(width: int, every: int) -> Parts:
    """Returns a model of two ranks that updates each so many batches."""
    return Parts(
        loader="DataLoader(samples(8 * 480), batch_size=8)",
        compute_s=0.0,
        model=f"nn.Sequential(nn.Linear(64, {width}), nn.Tanh(), nn.Linear({width}, 1))",
        accumulate=every,
        epochs=2,
    )


def needless_averaging(draw: Draw) -> Case:
    """Ranks average gradients after each of several batches, and use them once."""
    width, every = draw.one_of((4096, 8192)), draw.one_of((4, 2, 8))
    files = called(script("ranks", accumulating(width, every)), "{model}(x), y", f"  {HERE}")
    planted = f"{every} batches an update, averaged each, {width} wide"
    return Case("needless_averaging", planted, "ranks", files, "needless_averaging")
