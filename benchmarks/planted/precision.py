"""Double precision where it is meant."""

from __future__ import annotations

from planted.draw import Draw
from planted.script import EVERYWHERE, SAMPLERS, Case, Parts, script, whole_batches

_GAUSSIAN = """\
class Weigh(torch.autograd.Function):
    @staticmethod
    def forward(ctx, variance, values):
        factor = torch.linalg.cholesky(variance)
        weights = torch.cholesky_solve(values, factor)
        ctx.save_for_backward(factor, weights)
        return weights

    @staticmethod
    def backward(ctx, grad):
        factor, weights = ctx.saved_tensors
        back = torch.cholesky_solve(grad, factor)
        return -back @ weights.T, back


class Gaussian(nn.Module):
    def __init__(self):
        super().__init__()
        self.places = nn.Sequential(nn.Linear(64, {width}), nn.Tanh(), nn.Linear({width}, 4))
        self.values = nn.Linear(64, 1)

    def forward(self, x):
        near = torch.exp(-torch.cdist(self.places(x), self.places(x)).square())
        return Weigh.apply(near + 0.1 * torch.eye(len(x)), self.values(x))
"""


def double_on_purpose(draw: Draw) -> Case:
    """A Gaussian process: its matrices are taken apart by a function without a graph."""
    batch, width = draw.one_of((256, 384, 512)), draw.one_of((64, 96))
    parts = Parts(
        loader=whole_batches(60, batch),
        data=SAMPLERS,
        definitions=_GAUSSIAN.format(width=width),
        model="Gaussian()",
        optimizer="torch.optim.SGD(model.parameters(), lr=1e-4)",
        epochs=2,
        setup="torch.set_default_dtype(torch.float64)",
    )
    style = draw.one_of(EVERYWHERE)
    planted = f"a Gaussian process of {batch} points in float64"
    return Case("double_on_purpose", planted, style, script(style, parts))
