"""What a stream does ahead of its selection that others need too, or that draws random numbers."""

from __future__ import annotations

import textwrap

import pytest
from support.code_texts import code_of

from trainprof.probes.late_selection import LateSelection, late_selection

INFO = """\
info = get_worker_info()
rank, world = (info.id, info.num_workers) if info else (0, 1)
"""
# What each round does ahead of `if i % world != rank: continue`, and `yield x` behind it.
CARRIED = {
    "a running state": "state = self.fold(state, rec)\nx = state.copy()\n",
    "one that is given behind": "state = fold(state, rec)\nx = rec\nlast = rec\n",
    "a sum": "total += rec.sum()\nx = rec / total\n",
    "an attribute": "self.state = fold(self.state, rec)\nx = parse(rec)\n",
    "the one before": "x = diff(before, rec)\nbefore = rec\n",
    "a header, met at times": "if rec.is_header:\n    head = rec\nx = parse(head, rec)\n",
    "that in a try": "try:\n    head = parse(rec)\nexcept ValueError:\n    pass\nx = f(head)\n",
    "of both branches one": (
        "if rec.is_header:\n    head = rec\nelse:\n    use(rec)\nx = parse(head, rec)\n"
    ),
    "a window": "window.append(rec)\nx = sum(window)\n",
    "a window of its own": "self.window.append(rec)\nx = self.window.mean()\n",
    "what a window held": "window.append(rec)\nx = window.pop(0)\n",
    "an array": "window[i % 8] = rec\nx = window.sum()\n",
    "all seen": "x = parse(rec)\nif x.key in seen:\n    continue\nseen.add(x.key)\n",
    "a flag": "if rec == END:\n    is_on = False\nif is_on:\n    continue\nx = parse(rec)\n",
    "a count that is used": "if good(rec):\n    n += 1\nx = make(rec, n)\n",
    "a count of sizes": "n += len(rec)\nif n > 100:\n    continue\nx = parse(rec)\n",
    "a walrus": "x = (state := fold(state, rec))\n",
    "by a method": "x = self.folds(rec)\n",
    "by a method of a method": "x = self.deep(rec)\n",
    "first of all": "if first is None:\n    first = rec\nx = rec - first\n",
    "a smoothed one": "if m is None:\n    m = rec\nelse:\n    m = f(m, rec)\nx = m\n",
}
FREE = {
    "set anew": "state = begin(rec)\nstate = fold(state, rec)\nx = state\n",
    "set in all branches": (
        "if rec.kind:\n    y = f(rec)\nelif rec.bad:\n    continue\nelse:\n    y = g(rec)\nx = y\n"
    ),
    "set or left out": "try:\n    y = f(rec)\nexcept ValueError:\n    continue\nx = y\n",
    "within a round": "y = []\nfor one in rec:\n    y.append(f(one))\nx = sum(y)\n",
    "a sum of a round": "y = 0\nfor one in rec:\n    y += f(one)\nx = y\n",
    "of the record": "rec.x = rec.x / 2\nrec['y'] = rec['z']\nx = rec\n",
    "a count": "n += 1\nif n > 100:\n    break\nif n % 10 == 0:\n    print('.')\nx = parse(rec)\n",
    "a count of some": "if rec.bad:\n    n += 1\n    continue\nif n > 9:\n    break\nx = f(rec)\n",
    "what none reads": "total += len(rec)\nlog.append(rec)\nself.seen += 1\nx = parse(rec)\n",
    "comprehensions": "x = [f(one) for one in rec if one]\ny = (lambda one: one)(x)\n",
    "a file, once": "if self.file is None:\n    self.file = open(PATH)\nx = self.file.at(rec)\n",
    "that by a method": "x = self.reads(rec)\n",
    "kept and read by methods": "self.keep(rec)\nx = self.kept_twice()\n",
    "with": "with open(rec) as file:\n    y = file.read()\nx = y\n",
}
CLASS = """\
class Stream(IterableDataset):
    def folds(self, one):
        self.state = self.fold(self.state, one)
        return self.state

    def deep(my, one):
        if one:
            return my.folds(one)

    def reads(self, one):
        if not self.file:
            self.file = h5py.File(self.path)
        return self.file[one]

    def keep(self, one):
        self.kept = one

    def kept_twice(self):
        return 2 * self.kept

    def pairs(self):
        before = None
        for one in self.lines:
            yield parse(before, one)
            before = one

    def plain(self):
        n = 0
        for one in self.lines:
            n += 1
            yield n, parse(one)

    def more(self):
        yield from self.pairs()

    def sorted_paths(self):
        self.paths.sort()
        random.shuffle(self.paths)
        return self.paths

    def folded(self):
        return map(self.folds, self.lines)

    def noise(self, one):
        return one + self.rng.normal()

    def all_noise(self):
        for one in self.lines:
            yield self.noise(one)

    def noisy(self):
        for one in self.lines:
            yield one + self.rng.normal()

    def in_turn(self):
        for one in np.random.permutation(self.lines):
            yield parse(one)

"""


def of_class(body: str) -> LateSelection | None:
    text = f"{CLASS}    def __iter__(self):\n{textwrap.indent(body, ' ' * 8)}"
    return late_selection(code_of(text), text)


def is_carried(body: str) -> bool:
    found = of_class(body)
    assert found is not None
    return found.is_carried


def leaving_out(ahead: str) -> str:
    rounds = f"{ahead}if i % world != rank:\n    continue\nyield x\n"
    return f"{INFO}for i, rec in enumerate(self.lines):\n{textwrap.indent(rounds, ' ' * 4)}"


def keeping(ahead: str) -> str:
    rounds = f"{ahead}if i % world == rank:\n    yield x\nelse:\n    continue\n"
    return f"{INFO}for i, rec in enumerate(self.lines):\n{textwrap.indent(rounds, ' ' * 4)}"


@pytest.mark.parametrize("name", CARRIED)
def test_samples_that_need_those_ahead_of_them_cannot_be_left_out(name: str) -> None:
    assert is_carried(leaving_out(CARRIED[name]))
    assert is_carried(keeping(CARRIED[name]))


@pytest.mark.parametrize("name", FREE)
def test_what_rounds_do_not_hand_on_is_no_matter(name: str) -> None:
    assert not is_carried(leaving_out(FREE[name]))
    assert not is_carried(keeping(FREE[name]))


@pytest.mark.parametrize(
    ("rounds", "is_needed"),
    [
        ("x = f(rec)\nif i % world == rank:\n    yield x, prev\nprev = x\n", True),
        ("x = f(rec)\nif i % world == rank:\n    yield x, prev\n    prev = x\n", False),
        ("window.append(rec)\nif i % world == rank:\n    yield sum(window)\n", True),
        ("if rec.head:\n    h = rec\nif i % world != rank:\n    continue\nyield rec, h\n", True),
        ("x = f(rec)\nif i % world != rank:\n    continue\nyield x, prev\nprev = x\n", False),
    ],
    ids=["handed on behind", "its own", "read behind", "a header read behind", "its own behind"],
)
def test_what_is_behind_the_selection_may_read_what_all_did(rounds: str, is_needed: bool) -> None:
    loop = f"for i, rec in enumerate(self.lines):\n{textwrap.indent(rounds, ' ' * 4)}"
    assert is_carried(f"{INFO}{loop}") is is_needed


def test_methods_that_call_each_other_are_gone_through_once() -> None:
    calls = [
        f"    def m{n}(self, x):\n        return self.m{n + 1}(self.m{n + 1}(x))\n"
        for n in range(60)
    ]
    last = "    def m60(self, x):\n        self.kept = f(self.kept, self.m0(x))\n"
    body = textwrap.indent(leaving_out("x = self.m0(rec)\n"), " " * 8)
    text = f"class Stream(IterableDataset):\n{''.join(calls)}{last}    def __iter__(self):\n{body}"
    found = late_selection(code_of(text), text)
    assert found is not None
    assert found.is_carried


def test_an_expression_that_is_very_deep_tells_nothing() -> None:
    assert of_class(leaving_out(f"x = {'1 + ' * 1_500}rec\n")) is None


def test_what_a_method_sets_is_set_unless_it_may_leave_before() -> None:
    def told(method: str) -> bool:
        body = textwrap.indent(leaving_out("self.keep(rec)\nx = 2 * self.kept\n"), " " * 8)
        text = f"class Stream:\n    def keep(self, x):\n{method}    def __iter__(self):\n{body}"
        found = late_selection(code_of(text), text)
        assert found is not None
        return found.is_carried

    sets = "        self.kept = x\n"
    assert not told(sets)
    assert told(f"        if x.bad:\n            return\n{sets}")


SOURCES = {
    "self.pairs()": True,
    "self.more()": True,
    "map(self.folds, self.lines)": True,
    "(self.folds(x) for x in self.lines)": True,
    "self.folded()": True,
    "self.plain()": False,
    "self.sorted_paths()": False,
    "map(self.reads, self.lines)": False,
}


@pytest.mark.parametrize("source", SOURCES)
def test_what_its_own_functions_hand_on_is_seen(source: str) -> None:
    bodies = [
        f"{INFO}for i, x in enumerate({source}):\n    if i % world == rank:\n        yield x\n",
        f"{INFO}made = {source}\nfor x in islice(made, rank, None, world):\n    yield x\n",
        f"{INFO}yield from islice({source}, rank, None, world)\n",
        f"{INFO}return islice({source}, rank, None, world)\n",
    ]
    assert [is_carried(body) for body in bodies] == [SOURCES[source]] * len(bodies)


@pytest.mark.parametrize(
    ("ahead", "is_random"),
    [
        ("x = f(rec, random.random())\n", True),
        ("x = rec + rng.normal()\n", True),
        ("x = rec + torch.rand(3)\n", True),
        ("x = rec + self._rng.integers(3)\n", True),
        ("x = next(self.noisy())\n", True),
        ("x = next(self.in_turn())\n", True),
        ("x = self.normalized(rec)\n", False),
    ],
)
def test_random_numbers_ahead_of_the_selection_are_told(ahead: str, is_random: bool) -> None:
    found = of_class(leaving_out(ahead))
    assert found is not None
    assert found.is_random is is_random


@pytest.mark.parametrize(
    ("source", "is_random"),
    [
        ("self.noisy()", True),
        ("self.all_noise()", True),
        ("map(self.noise, self.lines)", True),
        ("self.sorted_paths()", False),
        ("(x + torch.randn(3) for x in self.lines)", True),
        ("self.in_turn()", False),
        ("random.sample(self.lines, 10)", False),
    ],
)
def test_random_numbers_in_what_is_gone_over_are_told(source: str, is_random: bool) -> None:
    found = of_class(
        f"{INFO}for i, x in enumerate({source}):\n    if i % world == rank:\n        yield x\n"
    )
    assert found is not None
    assert found.is_random is is_random


def test_random_numbers_for_its_own_samples_are_none_of_it() -> None:
    found = of_class(
        f"{INFO}for i, x in enumerate(self.lines):\n    if i % world == rank:\n"
        "        yield x + random.random()\n"
    )
    assert found is not None
    assert not found.is_random
