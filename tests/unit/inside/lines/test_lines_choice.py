"""Which functions a file's text, and the objects of a loader, make worth timing."""

from __future__ import annotations

import ast
import functools
import textwrap
from types import CodeType
from typing import Any, NoReturn

import pytest
import torch
from torch.utils.data import ConcatDataset, Dataset, Subset, default_collate

from trainprof.inside.lines.choice import MODULE, Choice, LoaderFunctions, choose, functions_in


def chosen(text: str, **more: object) -> Choice:
    text = textwrap.dedent(text)
    choice = choose(ast.parse(text), **more)  # type: ignore[arg-type]
    places = dict(functions_in(compile(text, "file.py", "exec", dont_inherit=True)))
    assert choice.why.keys() <= places.keys()
    return choice


def why(text: str, **more: object) -> dict[str, str]:
    return {name: reason for (name, _), reason in chosen(text, **more).why.items()}


LOOP = "training loop"
LOOPS = [
    "for x in data:\n    loss(x).backward()",
    "while True:\n    optimizer.step()",
    "for x in data:\n    with amp:\n        if x:\n            scaler.step(optimizer)",
    "for x, y in train_loader: f(x)",
    "for i, x in enumerate(tqdm(self.val_loader)): f(x)",
    "batches = torch.utils.data.DataLoader(d)\nfor x in batches: f(x)",
    "for epoch in range(3): f()",
    "async for x in loader: f()",
]


@pytest.mark.parametrize("loop", LOOPS)
def test_a_function_with_a_loop_that_trains(loop: str) -> None:
    kind = "async def" if "async" in loop else "def"
    text = f"{kind} train():\n{textwrap.indent(loop, '    ')}\ndef other():\n    pass\n"
    assert why(text) == {"train": LOOP}


STEP = """
    def step(x):
        loss = net(x)
        loss.backward()
    def train():
        for x in data:
            step(x)
    def main():
        train()
    """
METHODS = """
    class Trainer(Base):
        def fit(self):
            for batch in self.loader:
                self.step(batch)
        def step(self, batch):
            self.helper(batch)
        def helper(self, batch):
            return inherited(batch)
        def unused(self):
            pass
    class Base:
        def helper(self, batch):
            pass
    class Module:
        def training_step(self, batch, i):
            return self.loss(batch)
        def loss(self, batch):
            return 0
    class Spectra(Callback):
        def on_train_batch_end(self, trainer, module, outputs, batch, i):
            self.spectrum(batch)
        def spectrum(self, batch):
            pass
        def on_fit_end(self, trainer, module):
            pass
    """
OBJECTS = """
    class Net(nn.Module):
        def __init__(self):
            pass
        def forward(self, x):
            return x
        def embed(self, x):
            return x
    class Other(Net):
        pass
    model = Other().to(device)
    def train(model):
        for x in loader:
            model.embed(model(x))
    """


@pytest.mark.parametrize(
    ("text", "chosen"),
    [
        ("for x in loader:\n    f(x)\n", {MODULE: "module level"}),
        ("if a == 'b':\n    for epoch in x:\n        pass\n", {MODULE: "module level"}),
        ("for x in range(3):\n    print(x)", {}),
        ("def f(x):\n    for y in x:\n        y.stepping()", {}),
        ("class Loader:\n    def epoch(self):\n        return self.loader", {}),
        ("def f():\n    def g():\n        pass\n    for x in y:\n        pass", {}),
        ("def step(x):\n    net(x).backward()\n", {"step": LOOP}),
        (STEP, {"train": LOOP, "step": "called by train"}),
        (
            METHODS,
            {
                "Trainer.fit": LOOP,
                "Trainer.step": "called by Trainer.fit",
                "Trainer.helper": "called by Trainer.step",
                "Module.training_step": LOOP,
                "Module.loss": "called by Module.training_step",
                "Spectra.on_train_batch_end": LOOP,
                "Spectra.spectrum": "called by Spectra.on_train_batch_end",
            },
        ),
        (
            OBJECTS,
            {"train": LOOP, "Net.forward": "called by train", "Net.embed": "called by train"},
        ),
    ],
)
def test_what_a_text_makes_worth_timing(text: str, chosen: dict[str, str]) -> None:
    assert why(text) == chosen


def test_what_other_modules_are_to_add() -> None:
    text = """
    import engine, package.module as other
    from .data import make, Net
    from ..upper import thing
    model = Net()
    def main():
        for epoch in range(2):
            engine.train(make(), model.embed(1), model(2), thing())
            other.f()
    """
    choice = chosen(text, package="top.sub")
    assert {pair: reason for pair, reason in choice.wanted.items() if pair[0] != "builtins"} == {
        ("engine", "train"): "called by main",
        ("top.sub.data", "make"): "called by main",
        ("top.sub.data", "Net.embed"): "called by main",
        ("top.sub.data", "Net"): "called by main",
        ("top.upper", "thing"): "called by main",
        ("package.module", "f"): "called by main",
    }


# Objects of a loader: none of their code runs


def is_ours(code: CodeType) -> bool:
    return code.co_filename == __file__


def chosen_of(dataset: Any = None, collate: Any = None, sampler: Any = None) -> dict[str, str]:
    functions = LoaderFunctions(is_ours, dataset, collate, sampler)
    return {
        function.__qualname__.rpartition("<locals>.")[2]: why for function, why in functions.all()
    }


def load(index: int) -> int:
    return decode(index)


def decode(index: int) -> int:
    return index


def crop(x: Any) -> Any:
    return x


class Flip:
    def __call__(self, x: Any) -> Any:
        return self.flipped(x)

    def flipped(self, x: Any) -> Any:
        return x


class Compose:  # torchvision's has this name and attribute
    def __init__(self, *transforms: Any) -> None:
        self.transforms = list(transforms)


class Items(Dataset[Any]):
    def __init__(self, transform: Any = None) -> None:
        self.transform = transform

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Any:
        x = self.read(index)
        return self.transform(x) if self.transform else x

    def read(self, index: int) -> int:
        return load(index)

    @property
    def never_asked(self) -> NoReturn:
        raise AssertionError("a property ran")


READ = {
    "Items.__getitem__": "dataset",
    "Items.read": "called by Items.__getitem__",
    "load": "called by Items.read",
    "decode": "called by load",
}


FLIPS = {"Flip.__call__": "called by Items", "Flip.flipped": "called by Flip.__call__"}
CROPS = {"crop": "called by Items"}


@pytest.mark.parametrize(
    ("dataset", "chosen"),
    [
        (Items(), READ),
        (Items(Flip()), {**READ, **FLIPS}),
        (Items(functools.partial(crop)), {**READ, **CROPS}),
        (Items(Compose(crop, Flip())), {**READ, **FLIPS, **CROPS}),
        (Subset(Items(), [1, 2]), READ),
        (ConcatDataset([Items(), Subset(Items(Flip()), [0])]), {**READ, **FLIPS}),
        (torch.utils.data.TensorDataset(torch.ones(3)), {}),
        ([1, 2, 3], {}),
        (None, {}),
    ],
)
def test_a_dataset_and_what_it_calls(dataset: Any, chosen: dict[str, str]) -> None:
    assert chosen_of(dataset, default_collate) == chosen


class Pad:
    def __call__(self, samples: Any) -> Any:
        return self.padded(samples)

    def padded(self, samples: Any) -> Any:
        return samples


PADS = {"Pad.__call__": "collate", "Pad.padded": "called by Pad.__call__"}


@pytest.mark.parametrize(
    ("collate", "chosen"),
    [
        (Pad(), PADS),
        (Pad().__call__, PADS),
        (functools.partial(Pad()), PADS),
        (crop, {"crop": "collate"}),
        (lambda samples: crop(samples), {"<lambda>": "collate", "crop": "called by <lambda>"}),
    ],
)
def test_collate_in_every_shape(collate: Any, chosen: dict[str, str]) -> None:
    assert chosen_of(collate=collate) == chosen


def test_a_collate_function_that_a_library_holds() -> None:
    # As Hugging Face's Trainer does, whose own collator is no code of the user's.
    library: dict[str, Any] = {}
    source = "class Around:\n    def __call__(self, x):\n        return self.collate(x)\n"
    exec(compile(source, "library.py", "exec"), library)
    around = library["Around"]()
    around.collate = Pad()
    assert chosen_of(collate=around) == PADS


def test_nothing_of_the_script_runs() -> None:
    asked: list[str] = []

    class Watchful(Items):
        def __getattribute__(self, name: str) -> Any:
            asked.append(name)
            return super().__getattribute__(name)

        @property
        def __class__(self) -> Any:
            raise AssertionError("asked for its class")

    watchful = Watchful()
    asked.clear()
    assert chosen_of(watchful) == READ
    assert asked == []


def test_a_class_that_calls_itself_in_a_circle_ends() -> None:
    class Circle:
        def __getitem__(self, index: int) -> Any:
            return self.other(index)

        def other(self, index: int) -> Any:
            return self[index - 1] if index else self.other(index)

    circle: Any = Circle()
    circle.dataset = circle
    assert chosen_of(circle).keys() == {"Circle.__getitem__", "Circle.other"}
