"""Training loops written in a line: `3( i1 5( n1 l ) s1 [ i2 2( n2 f0 ) s2 ] )`.

i1 n1 s1    a new iterator of the loader of train.py:1, its next batch, its end
r1          from here on its iterator before goes on
f fg ft f0  a forward with gradients in training mode; only with gradients; only in training mode;
            with neither
b u u2 l    a backward, an update of optimizer 1 or 2, forward with backward and update
z g c       zero_grad, a garbage collection, a checkpoint of 90 ms
+ ~ @1      10 us or 2 s of Python; from here on thread 1
5( ... )    five times what is inside; ( ... ) groups
[ ... ]     what has to count as evaluation
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from support.events import LEARNS, MS, US, FakeRun

from trainprof.record.schema import ForwardFlag, Kind

FLAGS = {"": LEARNS, "g": ForwardFlag.GRAD, "t": ForwardFlag.TRAINING, "0": 0}


@dataclass
class Loop:
    """Plays loops on a run.

    Attributes:
        evaluated_ns: What was between brackets, all together.
        loaders, optimizers: Ids by number.
        left: Last batches of the iterators before, by id of their loader.
        left: Last batches of iterators before, by id.
    """

    run: FakeRun = field(default_factory=FakeRun)
    evaluated_ns: int = 0
    loaders: dict[int, int] = field(default_factory=dict)
    optimizers: dict[int, int] = field(default_factory=dict)
    left: dict[int, list[int]] = field(default_factory=dict)

    def play(self, text: str) -> Loop:
        """Plays a line of text, as above."""
        began: list[int] = []
        for token in unrolled(text.split()):
            if token == "[":
                began.append(self.run.now)
            elif token == "]":
                self.evaluated_ns += self.run.now - began.pop()
            else:
                self._step(token[0], token[1:])
        return self

    def loader(self, number: int) -> int:
        if number not in self.loaders:
            self.loaders[number] = self.run.loader(number)
        return self.loaders[number]

    def optimizer(self, number: int) -> int:
        if number not in self.optimizers:
            self.optimizers[number] = self.run.optimizer(f"SGD#{number}")
        return self.optimizers[number]

    def _step(self, what: str, which: str) -> None:
        run = self.run
        if what == "i":
            number = self.loader(int(which))
            self.left.setdefault(number, []).append(run.yielded.get(number, 0))
        if what == "r":
            number = self.loader(int(which))
            run.yielded[number] = self.left[number].pop()
        elif what in "ins":
            calls = {"i": run.iterate, "n": run.next, "s": run.stop}
            calls[what](self.loader(int(which)))
        elif what == "f":
            run.forward(flags=FLAGS[which])
        elif what == "b":
            run.backward()
        elif what in "zgc":
            kinds = {"z": Kind.ZERO_GRAD, "g": Kind.GC, "c": Kind.CHECKPOINT_SAVE}
            run.leaf(kinds[what], 90 * MS if what == "c" else US)
        elif what in "ul":
            optimizer = self.optimizer(int(which or 1))
            (run.update if what == "u" else run.learn)(optimizer)
        elif what == "@":
            run.thread = int(which)
        elif what != "|":
            run.passes_time({"+": 10 * US, "~": 2_000 * MS}[what])


def unrolled(tokens: list[str]) -> Iterator[str]:
    """Yields the tokens with all repetition written out."""
    place = 0
    while place < len(tokens):
        repeated = re.fullmatch(r"(\d*)\(", tokens[place])
        if repeated is None:
            yield tokens[place]
            place += 1
            continue
        depth, end = 1, place
        while depth:
            end += 1
            depth += tokens[end].endswith("(") - (tokens[end] == ")")
        for _ in range(int(repeated[1] or 1)):
            yield from unrolled(tokens[place + 1 : end])
        place = end + 1
