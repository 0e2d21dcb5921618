"""Several losses of one forward, each with its backward, and all of them with one."""

from __future__ import annotations

from planted.draw import Draw
from planted.script import EVERYWHERE, HERE, SAMPLERS, Case, Parts, script, whole_batches

_LEARNER = """\
TRUNK = nn.Sequential(
    nn.Linear(64, {width}), nn.Tanh(), nn.Linear({width}, {width}), nn.Tanh(),
    nn.Linear({width}, {width}), nn.Tanh(),
)
HEADS = nn.ModuleList([nn.Linear({width}, 1) for _ in range({heads})])
LEARNER_OPTIMIZER = torch.optim.SGD([*TRUNK.parameters(), *HEADS.parameters()], lr=1e-3)


def learn():
    shared = TRUNK(torch.randn({batch}, 64))
    losses = [head(shared).square().mean() for head in HEADS]
    LEARNER_OPTIMIZER.zero_grad()
    {passes}
    LEARNER_OPTIMIZER.step()
"""
_ONE_BY_ONE = f"""\
for number, one in enumerate(losses):
        one.backward(retain_graph=number < len(losses) - 1)  {HERE}"""
_TOGETHER = "sum(losses).backward(retain_graph=True)"


def learning(width: int, batch: int, heads: int, *, is_one_by_one: bool) -> Parts:
    """Returns a model beside which another learns several things.

    Args:
        width: Of what these share.
        batch: Its samples.
        heads: As many losses.
        is_one_by_one: Each has a backward of its own.
    """
    passes = _ONE_BY_ONE if is_one_by_one else _TOGETHER
    words = {"width": width, "batch": batch, "heads": heads, "passes": passes}
    return Parts(
        loader=whole_batches(100, batch),
        data=SAMPLERS,
        definitions=_LEARNER.format(**words),
        model="nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))",
        each_step="learn()",
        compute_s=0.002,
        epochs=2,
    )


def repeated_backward(draw: Draw) -> Case:
    """Each of several losses goes all the way back through what they share."""
    width, heads = draw.one_of((512, 384, 640)), draw.whole(2, 5)
    style = draw.one_of(EVERYWHERE)
    files = script(style, learning(width, 192, heads, is_one_by_one=True))
    planted = f"{heads} losses of layers of {width} numbers"
    return Case("repeated_backward", planted, style, files, "repeated_backward")


def one_backward(draw: Draw) -> Case:
    """Losses that share layers, with one backward for all, though it keeps its graph."""
    width, heads = draw.one_of((512, 384, 640)), draw.whole(2, 5)
    style = draw.one_of(EVERYWHERE)
    files = script(style, learning(width, 192, heads, is_one_by_one=False))
    return Case("one_backward", f"{heads} losses of {width} numbers, summed", style, files)
