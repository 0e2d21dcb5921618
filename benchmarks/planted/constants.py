"""Models that compute something anew in each forward: what stays the same, or what does not."""

from __future__ import annotations

from planted.draw import Draw
from planted.script import EVERYWHERE, HERE, Case, Parts, script

# A graph's heat kernel, of its edges alone; and how far places are from one another.
_WAYS = {
    "a kernel of a graph": """\
        degree = self.edges.sum(1)
        laplacian = torch.diag(degree) - self.edges
        return torch.linalg.matrix_exp(-0.1 * laplacian){here}
""",
    "a mask by distance": """\
        place = torch.arange({size})
        apart = (place.unsqueeze(0) - place.unsqueeze(1)).abs(){here}
        return torch.exp(-apart / 9.0).softmax(1){here}
""",
}
_MODEL = """\
class Smoothed(nn.Module):
    def __init__(self):
        super().__init__()
        edges = (torch.rand({size}, {size}) < 0.05).float()
        self.register_buffer("edges", torch.maximum(edges, edges.T))
        {kept}

    def kernel(self):
{way}
    def forward(self, x):
        kernel = {kernel}
        return x + 0.1 * x @ kernel[:64, :64]


class Noisy(nn.Module):
    def forward(self, x):
        near = torch.cdist(x, x).softmax(1)
        noise = torch.randn({noise}, {noise}).softmax(1)
        return x + 0.1 * near @ x + noise[:1, :64]
"""


def smoothing(way: str, size: int, compute_s: float, *, is_kept: bool) -> Parts:
    """Returns a model that smooths its input by a kernel, and another that adds noise.

    Args:
        way: How the kernel is made, of `_WAYS`.
        size: Of the kernel.
        compute_s: Of a step, asleep.
        is_kept: The kernel is computed once; the noise is so large that it takes long, too.
    """
    here = "" if is_kept else f"  {HERE}"
    words = {
        "size": size,
        "way": _WAYS[way].format(size=size, here=here),
        "kept": 'self.register_buffer("kept", self.kernel())' if is_kept else "",
        "kernel": "self.kept" if is_kept else "self.kernel()",
        "noise": size if is_kept else 64,
    }
    return Parts(
        loader="DataLoader(samples(130 * 16), batch_size=16)",
        definitions=_MODEL.format(**words).replace("        \n", ""),
        model="nn.Sequential(Noisy(), Smoothed(), build_model())",
        compute_s=compute_s,
        epochs=1,
    )


def constant_in_forward(draw: Draw) -> Case:
    """A kernel, or a mask, that no batch changes is computed in each forward."""
    (way, size), style = draw.one_of(_SIZES), draw.one_of(EVERYWHERE)
    compute_s = draw.between(0.004, 0.01)
    files = script(style, smoothing(way, size, compute_s, is_kept=False))
    planted = f"{way}, {size} x {size}, in each forward"
    return Case("constant_in_forward", planted, style, files, "constant_in_forward")


_SIZES = (
    ("a kernel of a graph", 192),
    ("a mask by distance", 1_024),
    ("a kernel of a graph", 256),
    ("a mask by distance", 768),
)
