"""Penalties of gradients, that some updates use."""

from __future__ import annotations

from planted.draw import Draw
from planted.script import EVERYWHERE, HERE, SAMPLERS, Case, Parts, script, whole_batches

_JUDGE = """\
JUDGE = nn.Sequential(
    nn.Linear(64, {width}), nn.Tanh(), nn.Linear({width}, {width}), nn.Tanh(), nn.Linear({width}, 1)
)
JUDGE_OPTIMIZER = torch.optim.SGD(JUDGE.parameters(), lr=1e-3)
ROUNDS = [0]


def penalty(x):
    x = x.detach().requires_grad_()
    (slope,) = torch.autograd.grad(JUDGE(x).sum(), x, create_graph=True){here}
    return slope.square().sum(1).mean()


def train_judge():
    x = torch.randn({batch}, 64)
    loss = JUDGE(x).square().mean()
    {asked}
    if ROUNDS[0] % {every} == 0:
        loss = loss + {added}
    ROUNDS[0] += 1
    JUDGE_OPTIMIZER.zero_grad()
    loss.backward()
    JUDGE_OPTIMIZER.step()
"""


def penalised(width: int, batch: int, every: int, *, is_lazy: bool) -> Parts:
    """Returns a model beside which a judge learns, at some updates with a penalty of gradients.

    Args:
        width: Of the judge.
        batch: Its samples.
        every: One in so many of its updates has the penalty.
        is_lazy: Others do not compute it.
    """
    asked, added = ("pass", "penalty(x)") if is_lazy else ("smoothness = penalty(x)", "smoothness")
    here = "" if is_lazy else f"  {HERE}"
    words = {"width": width, "batch": batch, "every": every, "here": here}
    return Parts(
        loader=whole_batches(150, batch),
        data=SAMPLERS,
        definitions=_JUDGE.format(asked=asked, added=added, **words),
        model="nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))",
        each_step="train_judge()",
        epochs=2,
    )


def rarely_used_gradients(draw: Draw) -> Case:
    """A penalty of gradients is computed at each update, and most do not add it."""
    width, batch = draw.one_of((512, 768, 384)), 256
    style, every = draw.one_of(EVERYWHERE), draw.one_of((16, 8, 4))
    files = script(style, penalised(width, batch, every, is_lazy=False))
    planted = f"a penalty for {width} numbers, used in 1 of {every} updates"
    return Case("rarely_used_gradients", planted, style, files, "rarely_used_gradients")
