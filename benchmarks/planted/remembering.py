"""A recurrent model that learns from the last of many states, and one that does from all."""

from __future__ import annotations

from planted.denormals import finding_of_denormals
from planted.draw import Draw
from planted.script import EVERYWHERE, SAMPLERS, Case, Parts, script, whole_batches


def remembering(read: str, width: int, batch: int) -> Parts:
    """Returns a recurrent model that reads each sample as 256 steps.

    Args:
        read: What is made of its `states`.
        width: Of a state.
        batch: Samples in one.
    """
    definitions = f"""\
class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.GRU(4, {width}, batch_first=True)
        self.head = nn.Linear({width}, 1)

    def forward(self, x):
        states, _ = self.rnn(x.view(-1, 16, 4).repeat(1, 16, 1))
        return self.head({read})
"""
    return Parts(
        loader=whole_batches(50, batch),
        data=SAMPLERS,
        definitions=definitions,
        model="Reader()",
        compute_s=0.0,
        epochs=1,
    )


def vanishing_gradients(draw: Draw) -> Case:
    """Only the last of many states is learned from: little of its gradient gets to the first."""
    width, batch = draw.one_of((96, 128)), draw.one_of((32, 48))
    style = draw.one_of(EVERYWHERE)
    files = script(style, remembering("states[:, -1]", width, batch))
    planted = f"the last of 256 states of {width} numbers, batches of {batch}"
    finding = finding_of_denormals()
    return Case("vanishing_gradients", planted, style, files, finding, no_line=True)


def all_states(draw: Draw) -> Case:
    """A recurrent model's states are all learned from: a gradient comes in at each."""
    width, style = draw.one_of((96, 128)), draw.one_of(EVERYWHERE)
    parts = remembering("states.mean(1)", width, 32)
    planted = f"the mean of 256 states of {width} numbers"
    return Case("all_states", planted, style, script(style, parts))
