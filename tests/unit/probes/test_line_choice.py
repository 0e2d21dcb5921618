"""Which functions a file's text makes worth timing."""

from __future__ import annotations

import ast
import textwrap

import pytest

from trainprof.probes.line_choice import MODULE, Choice, choose, functions_in


def chosen(text: str, **more: object) -> Choice:
    text = textwrap.dedent(text)
    choice = choose(ast.parse(text), **more)  # type: ignore[arg-type]
    places = dict(functions_in(compile(text, "file.py", "exec", dont_inherit=True)))
    assert {*choice.why, *choice.candidates} <= places.keys()
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


def test_datasets_are_candidates() -> None:
    text = """
    class Items(torch.utils.data.Dataset[int]):
        def __getitem__(self, i): return i
        def other(self): pass
    class Stream(IterableDataset):
        def __iter__(self): yield 1
    class NoData:
        def __getitem__(self, i): return i
    """
    assert {name for name, _ in chosen(text).candidates} == {"Items.__getitem__", "Stream.__iter__"}


USES = [
    "@profile\ndef f(): pass",
    "class A:\n    @profile\n    def f(self): pass",
    "from line_profiler import profile\n@profile\ndef f(): pass",
    "from line_profiler import profile as timed\n@timed\ndef f(): pass",
    "import line_profiler\n@line_profiler.profile\ndef f(): pass",
    "import builtins\nf = builtins.profile(f)",
    "f = profile(f)",
    "profile.add_function(f)",
    "with profile:\n    f()",
    "def g():\n    profile.enable_by_count()",
]
DOES_NOT_USE = [
    "if 'profile' not in globals():\n    profile = lambda f: f",
    "from torch.profiler import profile\nwith profile() as p:\n    f()",
    "import torch\nwith torch.profiler.profile() as p:\n    f()",
    "from memory_profiler import profile\n@profile\ndef f(): pass",
    "user.profile.save()",
    "profile = load()\nprofile.save()",
]


@pytest.mark.parametrize("text", USES)
def test_the_user_has_chosen(text: str) -> None:
    assert chosen(text).names_profile


@pytest.mark.parametrize("text", DOES_NOT_USE)
def test_another_profile_is_no_choice_of_the_users(text: str) -> None:
    assert not chosen(text).names_profile


def test_every_function_has_its_qualified_name() -> None:
    text = "def f():\n  class A:\n    def g(self): return lambda: 1\nclass B:\n  def h(self): ...\n"
    names = [name for (name, _), _ in functions_in(compile(text, "file.py", "exec"))]
    assert names == [
        MODULE,
        "f",
        "f.<locals>.A.g",
        "f.<locals>.A.g.<locals>.<lambda>",
        "B.h",
    ]


OBJECTS = {
    "made in one of several assignments": ("agent, rb = Agent(), Replay()", "rb"),
    "annotated": ("rb: Replay = restore()", "rb"),
    "known by its method's name alone": ("rb = restore()", "rb"),
}


@pytest.mark.parametrize(("made", "name"), OBJECTS.values(), ids=OBJECTS.keys())
def test_a_method_of_an_object_that_the_loop_calls(made: str, name: str) -> None:
    told = why(f"""
        class Replay:
            def sample(self, n):
                return n
            def step(self):
                return self

        class Agent:
            pass

        def main():
            {made}
            for _ in range(3):
                loss({name}.sample(4)).backward()
                optimizer.step()
        """)
    assert told["Replay.sample"] == "called by main"
    assert "Replay.step" not in told  # the optimizer's is meant


def test_what_is_assigned_counts_more_than_what_is_said() -> None:
    told = why("""
        from torch.nn import Module

        class Net(Module):
            def forward(self, x):
                return x

        def evaluate(model: Module, x):
            return model(x)

        def main():
            model = Net()
            for x in loader:
                model(x).max().backward()
        """)
    assert told["Net.forward"] == "called by main"


def test_a_parameter_that_says_what_it_is() -> None:
    told = why("""
        class Replay:
            def step(self):
                return self

        def train(rb: Replay):
            for x in loader:
                rb.step()
        """)
    assert told["Replay.step"] == "called by train"


def test_a_name_that_two_classes_have_names_neither() -> None:
    told = why("""
        class A:
            def sample(self):
                return 1
        class B:
            def sample(self):
                return 2

        def train(x):
            for _ in loader:
                x.sample()
        """)
    assert told == {"train": "training loop"}
