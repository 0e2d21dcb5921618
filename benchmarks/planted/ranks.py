"""Ranks of one training, one of which is slower."""

from __future__ import annotations

from dataclasses import replace

from planted.draw import Draw
from planted.script import DATASET, HERE, Case, Parts, as_ms, script
from planted.sizes import pass_batches, percent


def slow_rank(draw: Draw) -> Case:
    """One of two ranks waits longer for its batches, or does something alone."""
    share, compute_s = draw.between(0.15, 0.6), draw.between(0.01, 0.02)
    held_up_s, slow = compute_s * share / (1 - share), draw.one_of((1, 0))
    batches, batch = pass_batches(draw, compute_s + held_up_s, 2), 4
    if draw.one_of((True, False)):
        work = f"time.sleep({held_up_s / batch:.6f} if dist.get_rank() == {slow} else 0)"
        parts = Parts(
            loader=f"DataLoader(Pictures(), batch_size={batch})  {HERE}",
            data=DATASET.format(samples=batches * batch, work=work),
            compute_s=compute_s,
        )
        planted = f"rank {slow} loads {as_ms(held_up_s)} longer, {percent(share)} of a step"
    else:
        definitions = f"""\
def report(step):
    until = time.thread_time() + {held_up_s:.6f}  {HERE}
    while time.thread_time() < until:  {HERE}
        sum(range(200))  {HERE}
"""
        parts = Parts(
            loader=f"DataLoader(samples({batches * batch}), batch_size={batch})",
            definitions=definitions,
            compute_s=compute_s,
            each_step=f"if dist.get_rank() == {slow}:\n    report(step)",
        )
        planted = f"rank {slow} reports for {as_ms(held_up_s)}, {percent(share)} of a step"
    return Case("slow_rank", planted, "ranks", script("ranks", parts), "slow_rank")


_UNEVEN = """\
class Uneven(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(64, 1)

    def forward(self, x):
        time.sleep({long_s:.6f} if dist.get_rank() == {slow} else {short_s:.6f})
        return self.layer(x)
"""


def uneven_ranks(draw: Draw) -> Case:
    """One of two ranks computes longer, as one with longer sequences does."""
    share, short_s = draw.between(0.25, 0.6), draw.between(0.006, 0.012)
    long_s, slow, batch = short_s / (1 - share), draw.one_of((1, 0)), 4
    batches = pass_batches(draw, long_s, 2)
    parts = Parts(
        loader=f"DataLoader(samples({batches * batch}), batch_size={batch})",
        definitions=_UNEVEN.format(long_s=long_s, short_s=short_s, slow=slow),
        model="Uneven()",
    )
    planted = f"rank {slow} computes {as_ms(long_s - short_s)} longer, {percent(share)} of a step"
    case = Case("uneven_ranks", planted, "ranks", script("ranks", parts), "slow_rank")
    return replace(case, no_line=True)
