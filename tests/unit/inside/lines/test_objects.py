"""Which functions a loader's objects lead to, without running any of them."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from types import CodeType
from typing import Any, NoReturn

import torch
from torch.utils.data import ConcatDataset, DataLoader, Dataset, Subset, default_collate

from trainprof.inside.lines.choice import LoaderFunctions


def is_ours(code: CodeType) -> bool:
    return code.co_filename == __file__


def found(dataset: Any = None, collate: Any = None, sampler: Any = None) -> dict[str, str]:
    functions = LoaderFunctions(is_ours)
    functions.add_dataset(dataset)
    functions.add_collate(collate)
    functions.add_sampler(sampler)
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


def test_a_dataset_and_what_it_calls() -> None:
    assert found(Items()) == READ


def test_transforms_of_an_object() -> None:
    flips = {"Flip.__call__": "called by Items", "Flip.flipped": "called by Flip.__call__"}
    assert found(Items(Flip())) == {**READ, **flips}
    assert found(Items(functools.partial(crop)))["crop"] == "called by Items"
    both = found(Items(Compose(crop, Flip())))
    assert both == {**READ, **flips, "crop": "called by Items"}


def test_datasets_inside_others() -> None:
    assert found(Subset(Items(), [1, 2])) == READ
    assert found(ConcatDataset([Items(), Subset(Items(Flip()), [0])])).keys() > READ.keys()


def test_a_dataset_of_a_library_has_nothing_to_time() -> None:
    assert found(torch.utils.data.TensorDataset(torch.ones(3)), default_collate) == {}
    assert found([1, 2, 3]) == found(None) == found(range(3)) == {}


def test_collate_in_every_shape() -> None:
    class Collator:
        def __call__(self, samples: Any) -> Any:
            return self.pad(samples)

        def pad(self, samples: Any) -> Any:
            return samples

    collator = Collator()
    called = {"Collator.__call__": "collate", "Collator.pad": "called by"}
    for collate in (collator, collator.__call__, functools.partial(collator)):
        names = found(collate=collate)
        assert names.keys() == called.keys()
        assert names["Collator.__call__"] == "collate"
    assert found(collate=crop) == {"crop": "collate"}
    assert found(collate=lambda samples: crop(samples)).popitem()[1].startswith("called by")


def test_a_collate_function_that_a_library_holds() -> None:
    class Pad:
        def __call__(self, samples: Any) -> Any:
            return self.padded(samples)

        def padded(self, samples: Any) -> Any:
            return samples

    # As Hugging Face's Trainer does, whose own collator is no code of the user's.
    library: dict[str, Any] = {}
    source = "class Around:\n    def __call__(self, x):\n        return self.collate(x)\n"
    exec(compile(source, "library.py", "exec"), library)
    around = library["Around"]()
    around.collate = Pad()
    assert found(collate=around)["Pad.__call__"] == "collate"
    assert found(collate=around).keys() == {"Pad.__call__", "Pad.padded"}


def test_samplers_and_those_in_them() -> None:
    class Order:
        def __iter__(self) -> Iterator[int]:
            return iter(shuffled(3))

        def __len__(self) -> int:
            return 3

    def shuffled(n: int) -> list[int]:
        return list(range(n))

    loader = DataLoader(Items(), 2, sampler=Order())
    names = found(sampler=loader.batch_sampler)
    assert names["Order.__iter__"] == "sampler"
    assert names["shuffled"].endswith("Order.__iter__")


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
    assert found(watchful) == READ
    assert asked == []


def test_a_class_that_calls_itself_in_a_circle_ends() -> None:
    class Circle:
        def __getitem__(self, index: int) -> Any:
            return self.other(index)

        def other(self, index: int) -> Any:
            return self[index - 1] if index else self.other(index)

    circle: Any = Circle()
    circle.dataset = circle
    assert found(circle).keys() == {"Circle.__getitem__", "Circle.other"}
