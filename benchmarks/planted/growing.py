"""A backward that goes through earlier steps as well."""

from __future__ import annotations

from planted.draw import Draw
from planted.script import HERE, Case, Parts, script

STYLES = ("plain loop", "function", "class Trainer", "several files")


def growing_backward(draw: Draw) -> Case:
    """A running mean of activations that is not detached."""
    compute_s, steps = draw.between(0.004, 0.01), draw.whole(220, 320)
    definitions = """\
class Running(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale, self.mean = nn.Linear(64, 64), 0.0

    def forward(self, x):
        self.mean = 0.9 * self.mean + self.scale(x)
        return x + 0.001 * self.mean
"""
    parts = Parts(
        loader=f"DataLoader(samples({8 * steps}), batch_size=8)",
        definitions=definitions,
        model="nn.Sequential(Running(), build_model())",
        compute_s=compute_s,
        epochs=1,
    )
    style = draw.one_of(STYLES)
    files = {
        name: text.replace("loss.backward()", f"loss.backward(retain_graph=True)  {HERE}")
        for name, text in script(style, parts).items()
    }
    planted = f"a state that is not detached, {steps} steps"
    return Case("growing_backward", planted, style, files, "growing_backward", no_line=True)
