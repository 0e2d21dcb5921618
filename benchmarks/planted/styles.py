"""Training scripts in the styles that people write, put together from parts.

Where a finding has to point, a line ends in HERE. What computes sleeps in a module's forward, as
if a device computed: other programs on the machine do not change its size.
"""

from __future__ import annotations

import textwrap
from dataclasses import dataclass

MAIN = "train.py"
WIDTH = 64
EVERYWHERE = ("plain loop", "function", "class Trainer", "hooks", "several files")
WITH_GUARD = ("function", "class Trainer", "hooks", "several files", "accelerate")

IMPORTS = """\
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset
"""
MODEL = """\
class Device(nn.Module):
    def __init__(self, seconds):
        super().__init__()
        self.seconds = seconds

    def forward(self, x):
        time.sleep(self.seconds)
        return x


def build_model():
    return nn.Sequential(nn.Linear({width}, 32), Device({seconds:.6f}), nn.Linear(32, 1))
"""
IN_MEMORY = """\
def samples(count):
    return TensorDataset(torch.randn(count, 64), torch.randn(count, 1))
"""


@dataclass(frozen=True)
class Parts:
    """What a script consists of, as source text.

    Attributes:
        loader: An expression; None where `batch` makes each batch in the loop.
        data: Definitions that the loader needs.
        compute_s: Per step, asleep in the forward.
        epochs: How often the loader is gone through.
        imports, definitions: Of the script itself.
        model, optimizer: Expressions; the model takes (n, 64) and gives (n, 1).
        each_batch: Statements ahead of the forward.
        each_step: Statements after the optimizer's step; `step`, `loss` and `model` are known.
        each_epoch: Statements after each epoch.
        validation: Expression of a loader that is evaluated on `validate_every` epochs.
        evaluating: Comment on the line that goes through it.
        accumulate: Batches for each step of the optimizer.
        loss, backward: What makes the loss, and what goes back from it.
        forward_and_backward: Statements in place of both.
        setup: Statements ahead of all.
        batch: Expression that makes a batch where there is no loader, `steps` of them.
    """

    loader: str | None
    data: str = IN_MEMORY
    compute_s: float = 0.01
    epochs: int = 2
    imports: str = ""
    definitions: str = ""
    model: str = "build_model()"
    optimizer: str = "torch.optim.SGD(model.parameters(), lr=0.01)"
    each_batch: str = ""
    each_step: str = ""
    each_epoch: str = ""
    validation: str | None = None
    evaluating: str = ""
    validate_every: int = 1
    accumulate: int = 1
    loss: str = "nn.functional.mse_loss(model(x), y)"
    backward: str = "loss.backward()"
    forward_and_backward: str = ""
    setup: str = "torch.set_num_threads(1)"
    batch: str = ""
    steps: int = 0


def script(style: str, parts: Parts) -> dict[str, str]:
    """Returns the files of a script in one of STYLES."""
    files = STYLES[style](parts)
    return {name: text.replace("\n\n\n\n", "\n\n\n") for name, text in files.items()}


def _plain(parts: Parts) -> dict[str, str]:
    head = f"""\
{parts.setup}
torch.manual_seed(0)
model = {parts.model}
optimizer = {parts.optimizer}
"""
    body = _loop(parts, "loader")
    loaders = f"loader = {parts.loader}\n" if parts.loader else ""
    if parts.validation:
        loaders += f"validation = {parts.validation}\n"
    return {MAIN: _module(parts, head + loaders + body)}


def _function(parts: Parts) -> dict[str, str]:
    body = f"""\
def train(model, loader, validation=None):
    optimizer = {parts.optimizer}
{_indented(_loop(parts, "loader"))}

def main():
{_indented(parts.setup)}    torch.manual_seed(0)
    loader = {parts.loader}
    validation = {parts.validation}
    model = {parts.model}
    train(model, loader, validation)


if __name__ == "__main__":
    main()
"""
    return {MAIN: _module(parts, body)}


def _trainer(parts: Parts) -> dict[str, str]:
    body = f"""\
class Trainer:
    def __init__(self, model):
        self.model = model
        self.loader = {parts.loader}
        self.validation = {parts.validation}

    def fit(self):
        model, validation = self.model, self.validation
        optimizer = {parts.optimizer}
{_indented(_loop(parts, "self.loader"), 2)}

if __name__ == "__main__":
{_indented(parts.setup)}    torch.manual_seed(0)
    Trainer({parts.model}).fit()
"""
    return {MAIN: _module(parts, body)}


_ENGINE = """\
import torch


class Engine:
    def fit(self, module):
        loader, validation = module.train_loader(), module.validation_loader()
        optimizer = module.optimizer()
        step = 0
        for epoch in range(module.epochs):
            for batch in loader:
                optimizer.zero_grad()
                loss = module.training_step(batch)
                loss.backward()
                optimizer.step()
                step += 1
                module.on_step_end(step, loss)
            module.on_epoch_end(epoch)
            if validation is not None and (epoch + 1) % module.validate_every == 0:
                module.model.eval()
                with torch.no_grad():
                    for batch in validation:
                        module.training_step(batch)
                module.model.train()
"""


def _hooks(parts: Parts) -> dict[str, str]:
    body = f"""\
class Task:
    epochs, validate_every = {parts.epochs}, {parts.validate_every}

    def __init__(self):
        self.model = {parts.model}

    def train_loader(self):
        return {parts.loader}

    def validation_loader(self):
        return {parts.validation}

    def optimizer(self):
        model = self.model
        return {parts.optimizer}

    def training_step(self, batch):
        x, y = batch
{_indented(parts.each_batch or "pass", 2)}\
        return {parts.loss.replace("model(", "self.model(")}

    def on_step_end(self, step, loss):
        model = self.model
{_indented(parts.each_step or "pass", 2)}
    def on_epoch_end(self, epoch):
        model = self.model
{_indented(parts.each_epoch or "pass", 2)}

if __name__ == "__main__":
{_indented(parts.setup)}    torch.manual_seed(0)
    Engine().fit(Task())
"""
    imports = f"{parts.imports}\nfrom engine import Engine\n"
    text = _module(parts, body, imports=imports)
    engine = _ENGINE.replace("in validation:", f"in validation:  {parts.evaluating}")
    engine = engine.replace("loss.backward()", parts.backward)
    return {MAIN: text, "engine.py": engine}


def _several_files(parts: Parts) -> dict[str, str]:
    """The data in a module of its own, which builds the loaders too."""
    data = f"""\
{IMPORTS}
{parts.imports}

{parts.data}

def training():
    return {parts.loader}


def validation():
    return {parts.validation}
"""
    body = f"""\
def main():
{_indented(parts.setup)}    torch.manual_seed(0)
    model = {parts.model}
    optimizer = {parts.optimizer}
    loader, validation = dataset.training(), dataset.validation()
{_indented(_loop(parts, "loader"))}

if __name__ == "__main__":
    main()
"""
    head = f"{IMPORTS}{parts.imports}\nimport dataset\n\n\n"
    text = f"{head}{_model(parts)}\n\n{parts.definitions}\n\n{body}"
    return {MAIN: text, "dataset.py": data}


def _accelerate(parts: Parts) -> dict[str, str]:
    loop = _loop(parts, "loader").replace("loss.backward()", "accelerator.backward(loss)")
    body = f"""\
def main():
{_indented(parts.setup)}    torch.manual_seed(0)
    accelerator = Accelerator(cpu=True)
    model = {parts.model}
    optimizer = {parts.optimizer}
    loader = {parts.loader}
    validation = {parts.validation}
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
{_indented(loop)}

if __name__ == "__main__":
    main()
"""
    imports = f"{parts.imports}\nfrom accelerate import Accelerator\n"
    return {MAIN: _module(parts, body, imports=imports)}


def _ranks(parts: Parts) -> dict[str, str]:
    body = f"""\
def train(model, loader, validation=None):
    optimizer = {parts.optimizer}
{_indented(_loop(parts, "loader"))}

def work(rank, store):
{_indented(parts.setup)}    torch.manual_seed(0)
    dist.init_process_group("gloo", init_method=f"file://{{store}}", rank=rank, world_size=2)
    loader = {parts.loader}
    validation = {parts.validation}
    model = {parts.model}
    train(nn.parallel.DistributedDataParallel(model), loader, validation)
    dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(work, (f"{{folder}}/store",), nprocs=2)
"""
    imports = f"{parts.imports}\nimport tempfile\n\nimport torch.distributed as dist\n"
    return {MAIN: _module(parts, body, imports=imports)}


STYLES = {
    "plain loop": _plain,
    "function": _function,
    "class Trainer": _trainer,
    "hooks": _hooks,
    "several files": _several_files,
    "accelerate": _accelerate,
    "ranks": _ranks,
}


def _module(parts: Parts, body: str, imports: str | None = None) -> str:
    above = f"{IMPORTS}{parts.imports if imports is None else imports}"
    return f"{above}\n\n{parts.data}\n\n{_model(parts)}\n\n{parts.definitions}\n\n{body}"


def _model(parts: Parts) -> str:
    return MODEL.format(width=WIDTH, seconds=parts.compute_s)


def _loop(parts: Parts, loader: str) -> str:
    """Returns the training loop over `loader`, with `model`, `optimizer`, `validation` known."""
    steps = _step(parts)
    if parts.loader is None:
        return f"""\
for step in range({parts.steps}):
    x, y = {parts.batch}
{_indented(steps)}"""
    text = f"""\
step = 0
for epoch in range({parts.epochs}):
    for x, y in {loader}:
{_indented(steps, 2)}        step += 1
{_indented(parts.each_epoch)}"""
    if parts.validation is not None:
        text += f"""\
    if (epoch + 1) % {parts.validate_every} == 0:
        model.eval()
        with torch.no_grad():
            for x, y in validation:  {parts.evaluating}
                nn.functional.mse_loss(model(x), y)
        model.train()
"""
    return text


def _step(parts: Parts) -> str:
    learn = f"loss = {parts.loss}\n"
    if parts.accumulate == 1:
        update = f"optimizer.zero_grad()\n{parts.backward}\noptimizer.step()\n"
    else:
        learn = parts.forward_and_backward or f"{learn}(loss / {parts.accumulate}).backward()\n"
        update = f"""\
if step % {parts.accumulate} == {parts.accumulate - 1}:
    optimizer.step()
    optimizer.zero_grad()
"""
    before = f"{parts.each_batch}\n" if parts.each_batch else ""
    after = f"{parts.each_step}\n" if parts.each_step else ""
    return f"{before}{learn}{update}{after}"


def _indented(text: str, levels: int = 1) -> str:
    if not text:
        return ""
    indented = textwrap.indent(text, "    " * levels)
    return indented if indented.endswith("\n") else f"{indented}\n"
