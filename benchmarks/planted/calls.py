"""Ranks that average gradients of several batches each time, or once."""

from __future__ import annotations

import re

from planted.draw import Draw
from planted.script import HERE, Case, Parts, script

_CALL = re.compile(r"(self\.)?\bmodel\(x\), y\)")


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
