"""Models that compare all vectors with all: by one large tensor, and by a matrix product."""

from __future__ import annotations

from planted.draw import Draw
from planted.script import EVERYWHERE, HERE, SAMPLERS, Case, Parts, script, whole_batches

_BROADCAST = {
    "distance": "((seen.unsqueeze(1) - self.codes) ** 2).sum(-1)",
    "product": "(seen.unsqueeze(1) * self.codes).sum(-1)",
    "cosine": "F.cosine_similarity(seen.unsqueeze(1), self.codes.unsqueeze(0), dim=-1)",
}
_BY_PRODUCT = {
    "distance": "torch.cdist(seen, self.codes).square()",
    "product": "seen @ self.codes.T",
    "cosine": "F.normalize(seen, dim=-1) @ F.normalize(self.codes, dim=-1).T",
}


def comparing(comparison: str, codes: int, batch: int) -> Parts:
    """Returns a model that compares what it makes of each sample with what it has learnt.

    Args:
        comparison: Of `seen` with `self.codes`.
        codes: How many vectors of 64 numbers.
        batch: Samples in one.
    """
    definitions = f"""\
import torch.nn.functional as F


class Comparing(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64))
        self.codes = nn.Parameter(torch.randn({codes}, 64))
        self.head = nn.Linear({codes}, 1)

    def forward(self, x):
        seen = self.inner(x)
        near = {comparison}
        return self.head(near / 64)
"""
    return Parts(
        loader=whole_batches(100, batch),
        data=SAMPLERS,
        definitions=definitions,
        model="Comparing()",
        compute_s=0.0,
        epochs=2,
    )


def broadcast_pairs(draw: Draw) -> Case:
    """Each number of each pair of vectors is held at once."""
    what, codes = draw.one_of(tuple(_BROADCAST)), draw.whole(100, 300)
    batch, style = draw.one_of((128, 192, 256)), draw.one_of(EVERYWHERE)
    files = script(style, comparing(f"{_BROADCAST[what]}  {HERE}", codes, batch))
    planted = f"{what} of {batch} and {codes} vectors of 64 numbers"
    return Case("broadcast_pairs", planted, style, files, "broadcast_pairs")


def matrix_products(draw: Draw) -> Case:
    """The same is compared, by what holds one number of each pair."""
    what, codes = draw.one_of(tuple(_BY_PRODUCT)), draw.whole(100, 300)
    style = draw.one_of(EVERYWHERE)
    files = script(style, comparing(_BY_PRODUCT[what], codes, 256))
    planted = f"{what} of 256 and {codes} vectors of 64 numbers"
    return Case("matrix_products", planted, style, files)
