"""Which functions a file's text makes worth timing."""

from __future__ import annotations

import ast
import textwrap

import pytest

from trainprof.inside.lines.choice import MODULE, Choice, choose, functions_in


def chosen(text: str, **more: object) -> Choice:
    text = textwrap.dedent(text)
    choice = choose(ast.parse(text), **more)  # type: ignore[arg-type]
    places = dict(functions_in(compile(text, "file.py", "exec", dont_inherit=True)))
    assert choice.why.keys() <= places.keys()
    return choice


def why(text: str, **more: object) -> dict[str, str]:
    return {name: reason for (name, _), reason in chosen(text, **more).why.items()}


LOOPS = {
    "backward": "for x in data:\n    loss(x).backward()",
    "step": "while True:\n    optimizer.step()",
    "scaler": "for x in data:\n    with amp:\n        if x:\n            scaler.step(optimizer)",
    "loader": "for x, y in train_loader: f(x)",
    "wrapped loader": "for i, x in enumerate(tqdm(self.val_loader)): f(x)",
    "a name given to a loader": "batches = torch.utils.data.DataLoader(d)\nfor x in batches: f(x)",
    "epochs": "for epoch in range(3): f()",
    "asynchronous": "async for x in loader: f()",
}


@pytest.mark.parametrize("loop", LOOPS.values(), ids=LOOPS.keys())
def test_a_function_with_a_loop_that_trains(loop: str) -> None:
    kind = "async def" if "async" in loop else "def"
    text = f"{kind} train():\n{textwrap.indent(loop, '    ')}\ndef other():\n    pass\n"
    assert why(text) == {"train": "training loop"}


def test_a_loop_at_module_level() -> None:
    assert why("for x in loader:\n    f(x)\n") == {MODULE: "module level"}
    assert why("if __name__ == '__main__':\n    for epoch in x:\n        pass\n") == {
        MODULE: "module level"
    }


@pytest.mark.parametrize(
    "text",
    [
        "for x in range(3):\n    print(x)",
        "def f(x):\n    for y in x:\n        y.stepping()",
        "class Loader:\n    def epoch(self):\n        return self.loader",
        "def f():\n    def g():\n        pass\n    for x in y:\n        pass",
    ],
)
def test_no_training_no_choice(text: str) -> None:
    assert why(text) == {}


def test_a_step_in_a_function_of_its_own_makes_its_caller_the_loop() -> None:
    text = """
    def step(x):
        loss = net(x)
        loss.backward()
    def train():
        for x in data:
            step(x)
    def main():
        train()
    """
    assert why(text) == {"train": "training loop", "step": "called by train"}


def test_a_step_that_nobody_here_calls_stands_for_itself() -> None:
    assert why("def step(x):\n    net(x).backward()\n") == {"step": "training loop"}


def test_methods_and_what_a_framework_calls() -> None:
    text = """
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
    assert why(text) == {
        "Trainer.fit": "training loop",
        "Trainer.step": "called by Trainer.fit",
        "Trainer.helper": "called by Trainer.step",
        "Module.training_step": "training loop",
        "Module.loss": "called by Module.training_step",
        "Spectra.on_train_batch_end": "training loop",
        "Spectra.spectrum": "called by Spectra.on_train_batch_end",
    }


def test_objects_lead_to_their_classes() -> None:
    text = """
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
    assert why(text) == {
        "train": "training loop",
        "Net.forward": "called by train",
        "Net.embed": "called by train",
    }


def test_functions_in_functions() -> None:
    text = """
    def main():
        def closure():
            return inner()
        def inner():
            return 1
        for epoch in range(2):
            closure()
    """
    assert why(text) == {
        "main": "training loop",
        "main.<locals>.closure": "called by main",
        "main.<locals>.inner": "called by main.<locals>.closure",
    }


def test_decorators_count_as_the_first_line() -> None:
    text = "@first\n@second(\n    3)\ndef main():\n    for epoch in x:\n        pass\n"
    assert list(chosen(text).why) == [("main", 1)]


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


def test_what_other_modules_have_asked_for() -> None:
    text = """
    def make():
        return helper()
    def helper():
        pass
    class Net:
        def __init__(self): pass
        def forward(self, x): pass
        def embed(self, x): pass
    class Plain:
        def __init__(self): pass
    """
    called = dict.fromkeys(["make", "Net", "Net.embed", "Plain", "gone"], "called by main")
    assert why(text, called=called) == {
        "make": "called by main",
        "helper": "called by make",
        "Net.forward": "called by main",
        "Net.embed": "called by main",
        "Plain.__init__": "called by main",
    }


def test_every_function_has_its_qualified_name() -> None:
    text = "def f():\n  class A:\n    def g(self): return lambda: 1\nclass B:\n  def h(self): ...\n"
    names = [name for (name, _), _ in functions_in(compile(text, "file.py", "exec"))]
    assert names == [MODULE, "f", "f.<locals>.A.g", "f.<locals>.A.g.<locals>.<lambda>", "B.h"]
