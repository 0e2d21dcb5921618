"""Models that compute something anew in each forward, or in each round of a loop within one."""

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


def _ahead_of_the_model(
    modules: str, text: str, words: dict[str, object], compute_s: float
) -> Parts:
    """Returns a script whose model begins with these modules, which a text with words defines."""
    return Parts(
        loader="DataLoader(samples(130 * 16), batch_size=16)",
        definitions=text.format(**words).replace("        \n", ""),
        model=f"nn.Sequential({modules}, build_model())",
        compute_s=compute_s,
        epochs=1,
    )


def smoothing(way: str, size: int, compute_s: float, *, is_kept: bool) -> Parts:
    """Returns a model that smooths its input by a kernel, and another that adds noise.

    Args:
        way: How the kernel is made, of `_WAYS`.
        size: Of the kernel.
        compute_s: Of a step, asleep.
        is_kept: The kernel is computed once; the noise is so large that it takes long, too.
    """
    here = "" if is_kept else f"  {HERE}"
    words: dict[str, object] = {
        "size": size,
        "way": _WAYS[way].format(size=size, here=here),
        "kept": 'self.register_buffer("kept", self.kernel())' if is_kept else "",
        "kernel": "self.kept" if is_kept else "self.kernel()",
        "noise": size if is_kept else 64,
    }
    return _ahead_of_the_model("Noisy(), Smoothed()", _MODEL, words, compute_s)


def constant_in_forward(draw: Draw) -> Case:
    """A kernel, or a mask, that no batch changes is computed in each forward."""
    (way, size), style = draw.one_of(_SIZES), draw.one_of(EVERYWHERE)
    compute_s = draw.between(0.004, 0.01)
    files = script(style, smoothing(way, size, compute_s, is_kept=False))
    planted = f"{way}, {size} x {size}, in each forward"
    return Case("constant_in_forward", planted, style, files, "constant_in_forward")


_RECURRENT = """\
class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.places = nn.Parameter(torch.randn({nodes}, 16) / 4)
        self.dropout = nn.Dropout(0.1)

    def near(self):
        near = self.places @ self.places.T{here}
        return near.relu().softmax(1){here}

    def forward(self, x):
        {ahead}
        for _ in range({rounds}):
            near = {near}
            x = 0.9 * x + 0.1 * torch.tanh(x @ near[:64, :64])
        return x
"""


def recurrent(nodes: int, rounds: int, compute_s: float, *, is_ahead: bool) -> Parts:
    """Returns a model that goes along a graph whose edges are learnt.

    Args:
        nodes: Of the graph.
        rounds: Of its loop.
        compute_s: Of a step, asleep.
        is_ahead: The edges are computed ahead of the loop; each round leaves out some by chance.
    """
    words: dict[str, object] = {
        "nodes": nodes,
        "rounds": rounds,
        "here": "" if is_ahead else f"  {HERE}",
        "ahead": "edges = self.near()" if is_ahead else "",
        "near": "self.dropout(edges)" if is_ahead else "self.near()",
    }
    return _ahead_of_the_model("Recurrent()", _RECURRENT, words, compute_s)


def repeated_in_forward(draw: Draw) -> Case:
    """The edges of a graph, of parameters alone, are computed in each round of a loop."""
    nodes, rounds = draw.one_of((256, 384, 512)), draw.whole(6, 12)
    compute_s, style = draw.between(0.004, 0.01), draw.one_of(EVERYWHERE)
    files = script(style, recurrent(nodes, rounds, compute_s, is_ahead=False))
    planted = f"edges of {nodes} nodes, {rounds} times in each forward"
    return Case("repeated_in_forward", planted, style, files, "repeated_in_forward")


_SIZES = (
    ("a kernel of a graph", 192),
    ("a mask by distance", 1_024),
    ("a kernel of a graph", 256),
    ("a mask by distance", 768),
)
