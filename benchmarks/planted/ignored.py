"""Losses that ignore most of their targets, with logits for all and for the others alone."""

from __future__ import annotations

from planted.draw import Draw
from planted.script import EVERYWHERE, HERE, SAMPLERS, Case, Parts, script, whole_batches

_LEARNER = """\
import torch.nn.functional as F


class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(96, 192), nn.ReLU(), nn.Linear(192, 96))
        self.head = nn.Linear(96, {words})

    def forward(self, seen, targets):
        hidden = self.inner(seen)
        {inside}


WORDS = Words()
WORDS_OPTIMIZER = torch.optim.SGD(WORDS.parameters(), lr=1e-3)
CRITERION = nn.CrossEntropyLoss()


def learn():
    targets = torch.randint({words}, ({positions},))
    targets[torch.rand({positions}) < {ignored}] = -100
    given = WORDS(torch.randn({positions}, 96), targets)
    {outside}
    WORDS_OPTIMIZER.zero_grad()
    loss.backward()
    WORDS_OPTIMIZER.step()
"""
_ALL = {
    "in forward": (f"return F.cross_entropy(self.head(hidden), targets)  {HERE}", "loss = given"),
    "outside": ("return self.head(hidden)", f"loss = F.cross_entropy(given, targets)  {HERE}"),
    "by a module": ("return self.head(hidden)", f"loss = CRITERION(given, targets)  {HERE}"),
}
_CHOSEN = "return F.cross_entropy(self.head(hidden[targets != -100]), targets[targets != -100])"


def learning(words: int, positions: int, ignored: float, inside: str, outside: str) -> Parts:
    """Returns a model beside which another learns words.

    Args:
        words: How many there are.
        positions: In a batch of words.
        ignored: Of them.
        inside, outside: What its forward ends with, and how the loss is got.
    """
    return Parts(
        loader=whole_batches(100, 32),
        data=SAMPLERS,
        definitions=_LEARNER.format(
            words=words, positions=positions, ignored=ignored, inside=inside, outside=outside
        ),
        model="nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))",
        each_step="learn()",
        compute_s=0.002,
        epochs=2,
    )


def ignored_positions(draw: Draw) -> Case:
    """Logits are made for all positions, of which the loss looks at a few."""
    where, words = draw.one_of(tuple(_ALL)), draw.whole(2000, 5000)
    positions, ignored = draw.whole(500, 1000), draw.one_of((0.85, 0.6, 0.75))
    style = draw.one_of(EVERYWHERE)
    files = script(style, learning(words, positions, ignored, *_ALL[where]))
    planted = f"{100 * ignored:.0f} % of {positions} positions of {words} words, {where}"
    return Case("ignored_positions", planted, style, files, "ignored_positions")


def chosen_positions(draw: Draw) -> Case:
    """Logits are made for those positions that the loss looks at."""
    words, positions, style = draw.whole(2000, 5000), 1200, draw.one_of(EVERYWHERE)
    files = script(style, learning(words, positions, 0.85, _CHOSEN, "loss = given"))
    return Case("chosen_positions", f"15 % of 1200 positions of {words} words", style, files)
