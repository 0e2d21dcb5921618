"""Frameworks as people use them: the real packages, right counts, the user's own lines.

Each script sleeps in its model's forward, times that itself, and prints every loss to the bit. A
comment in it marks the lines that build loaders, and what for.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from support.machine import attempts
from support.processes import path_with_scripts
from support.styles import (
    TRAINPROF,
    WITH_COMPILER,
    Style,
    check_counts,
    missed_costs,
    output,
    without_compiler,
)

MARK = "# builds "

FRAMEWORK_PREAMBLE = f"""{WITH_COMPILER}
import hashlib, os, sys

warnings.simplefilter("ignore")

def timing(name, function):
    def timed_function(*args, **kwargs):
        with timed(name):
            return function(*args, **kwargs)
    return timed_function

def tell_state(model):  # that it has learnt the same, and drawn as many random numbers
    state = b"".join(p.detach().numpy().tobytes() for p in model.parameters())
    print(hashlib.sha256(state + torch.get_rng_state().numpy().tobytes()).hexdigest())

def tensors(batches):
    return TensorDataset(torch.randn(4 * batches, 8), torch.randn(4 * batches, 1))

saving = []

def time_checkpoints(owner, name):  # a library's has those of torch inside
    function = getattr(owner, name)

    def timed_save(*args, **kwargs):
        if saving:
            return function(*args, **kwargs)
        saving.append(name)
        try:
            with timed("checkpoint"):
                return function(*args, **kwargs)
        finally:
            saving.pop()

    setattr(owner, name, timed_save)

time_checkpoints(torch, "save")
"""

LIGHTNING = """
import logging
import lightning as L

time_checkpoints(L.Trainer, "save_checkpoint")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
quiet = dict(accelerator="cpu", max_epochs=2, logger=False, default_root_dir=".",
             enable_progress_bar=False, enable_model_summary=False)

class Regression(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = make_model()

    def training_step(self, batch, number):
        x, y = batch
        with timed("forward"):
            p = self.net(x)
        loss = mse(p, y)
        print(loss.item().hex())
        with timed("other at least"):  # the optimizer's step calls it
            time.sleep(0.02)
        self.log("loss", loss)
        return loss

    def validation_step(self, batch, number, dataloader_idx=0):
        x, y = batch
        with timed("evaluation at least"):
            p = self.net(x)
        loss = mse(p, y)
        print("validation", loss.item().hex())
        self.log("validation", loss)

    test_step = validation_step

    def predict_step(self, batch, number):
        x, y = batch
        with timed("evaluation at least"):
            return self.net(x)

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters())
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
        return {"optimizer": optimizer, "lr_scheduler": scheduler}

def time_evaluation(loop):
    loop.run = timing("evaluation at most", loop.run)
"""


LIGHTNING_FITS = """
from lightning.pytorch.callbacks import ModelCheckpoint

class Data(L.LightningDataModule):
    def __init__(self):
        super().__init__()
        self.validation, self.unseen = tensors(3), tensors(3)

    def train_dataloader(self):
        return DataLoader(tensors(8), batch_size=4, shuffle=True)  # builds training

    def val_dataloader(self):
        return self.plain_loader(self.validation)

    def test_dataloader(self):
        return self.plain_loader(self.unseen)

    def plain_loader(self, dataset):
        return DataLoader(dataset, batch_size=4)  # builds evaluation

class SlowToPickle:
    def __reduce__(self):
        time.sleep(0.03)
        return (int, ())

class Saving(Regression):
    def on_save_checkpoint(self, checkpoint):
        checkpoint["slow"] = SlowToPickle()

model = Saving()
trainer = L.Trainer(**quiet, accumulate_grad_batches=2, gradient_clip_val=1.0,
                    callbacks=[ModelCheckpoint("checkpoints", save_top_k=-1)])
time_evaluation(trainer.fit_loop.epoch_loop.val_loop)
data = Data()
trainer.fit(model, datamodule=data)
with timed("evaluation at most"):
    trainer.test(model, datamodule=data, verbose=False)
tell_state(model)
print(sorted(os.listdir("checkpoints")))
"""

LIGHTNING_TAKES_LOADERS = """
workers = dict(num_workers=1, persistent_workers=True)
training = DataLoader(tensors(8), batch_size=4, shuffle=True, **workers)  # builds training
validation = [
    DataLoader(tensors(2), batch_size=4),  # builds evaluation
    DataLoader(tensors(3), batch_size=4),  # builds evaluation
]
unseen = DataLoader(tensors(4), batch_size=4)  # builds evaluation
model = Regression()
trainer = L.Trainer(**quiet, val_check_interval=0.5, enable_checkpointing=False)
time_evaluation(trainer.fit_loop.epoch_loop.val_loop)
trainer.fit(model, training, validation)
with timed("evaluation at most"):
    trainer.test(model, unseen, verbose=False)
    trainer.predict(model, unseen)  # rebuilds the loader: with a batch sampler that keeps indices
tell_state(model)
"""

LIGHTNING_OPTIMIZES_BY_HAND = """
class Adversaries(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False
        self.g, self.d = make_model(), nn.Linear(1, 1)

    def training_step(self, batch, number):
        x, y = batch
        optimizer_g, optimizer_d = self.optimizers()
        self.toggle_optimizer(optimizer_d)
        with timed("forward"):
            fake = self.g(x).detach()
        loss_d = self.d(fake).mean() - self.d(y).mean()
        optimizer_d.zero_grad(); self.manual_backward(loss_d); optimizer_d.step()
        self.untoggle_optimizer(optimizer_d)
        self.toggle_optimizer(optimizer_g)
        with timed("forward"):
            fake = self.g(x)
        loss_g = -self.d(fake).mean()
        optimizer_g.zero_grad(); self.manual_backward(loss_g); optimizer_g.step()
        self.untoggle_optimizer(optimizer_g)
        print(loss_d.item().hex(), loss_g.item().hex())

    def configure_optimizers(self):
        return [torch.optim.Adam(net.parameters()) for net in (self.g, self.d)]

model = Adversaries()
trainer = L.Trainer(**quiet, enable_checkpointing=False)
trainer.fit(model, DataLoader(tensors(6), batch_size=4, shuffle=True))  # builds training
tell_state(model)
"""


@dataclass(frozen=True)
class Framework:
    """A style of a framework's.

    Attributes:
        needs: The packages it imports.
        rows: What it proves, as docs/tested-with.md words it.
        loaders: How many the report lists.
        built_by: The package that builds them, None where the script does.
        commands: Each starts the script once, in the place of python; () is python.
    """

    style: Style
    needs: tuple[str, ...]
    rows: tuple[str, ...]
    loaders: int
    built_by: str | None = None
    commands: tuple[tuple[str, ...], ...] = ((),)
    needs_compiler: bool = False


FRAMEWORKS = {
    "Lightning": Framework(
        Style(
            # One after the other: each would wait eight seconds for Lightning's import.
            LIGHTNING + LIGHTNING_FITS + LIGHTNING_TAKES_LOADERS + LIGHTNING_OPTIMIZES_BY_HAND,
            steps=8 + 16 + 12,
            iterations=16 + 16 + 12,
            epochs=2 + 2 + 2,
            # Two batches of each loader before training, to see whether it works.
            evaluated=(2 + 2 * 3 + 3) + (2 * 2 + 4 * (2 + 3) + 2 * 4),
            roles=("evaluation", "training"),
            without=("recompute",),
            also=("checkpoint",),
            passes=((4, 8),) * 2 + ((8, 8),) * 2 + ((6, 6),) * 2,
        ),
        ("lightning",),
        (
            "Lightning's `fit` and `test`: validation, accumulation, a data module, checkpoints",
            "Lightning's loaders: several, in mid-epoch, in `test`, rebuilt for `predict`",
            "Lightning's manual optimization, two optimizers",
        ),
        loaders=3 + 5 + 1,
        needs_compiler=True,
    ),
    "Hugging Face's Trainer": Framework(
        Style(
            """
import datasets
from transformers import PrinterCallback, Trainer, TrainingArguments

class Regression(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = make_model()

    def forward(self, x, labels):
        with timed("forward" if self.training else "evaluation at least"):
            p = self.net(x)
            return {"loss": mse(p, labels), "logits": p}

def rows(count):  # with a column that the model does not take: each loader gets a copy without it
    x, y = torch.randn(count, 8).tolist(), torch.randn(count, 1).tolist()
    return datasets.Dataset.from_dict({"x": x, "labels": y, "note": ["none"] * count})

time_checkpoints(Trainer, "_save_checkpoint")

class Told(Trainer):
    def evaluation_loop(self, *args, **kwargs):
        with timed("evaluation at most"):
            return super().evaluation_loop(*args, **kwargs)

model = Regression()
arguments = TrainingArguments(
    "saved", num_train_epochs=2, per_device_train_batch_size=4, per_device_eval_batch_size=4,
    gradient_accumulation_steps=2, eval_strategy="steps", eval_steps=4, save_strategy="steps",
    save_steps=4, logging_steps=1, report_to=[], use_cpu=True, disable_tqdm=True)
trainer = Told(model, arguments, train_dataset=rows(64), eval_dataset=rows(24))
trainer.remove_callback(PrinterCallback)
trainer.train()  # builds training, evaluation
for logged in trainer.state.log_history:
    print({k: v for k, v in logged.items() if k in ("loss", "eval_loss", "grad_norm")})
tell_state(model)
print(sorted(os.listdir("saved")))
""",
            *(16, 32, 2, 4 * 6),
            roles=("training", "evaluation"),
            without=("recompute",),
            also=("checkpoint",),
        ),
        ("transformers", "accelerate", "datasets"),
        ("Hugging Face's Trainer: accumulation, evaluation and saving every few steps",),
        loaders=2,
        built_by="transformers",
        needs_compiler=True,
    ),
    "accelerate": Framework(
        Style(
            """
from accelerate import Accelerator

time_checkpoints(Accelerator, "save_state")
accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
training = DataLoader(tensors(8), batch_size=4, shuffle=True)  # builds training
validation = DataLoader(tensors(3), batch_size=4)  # builds evaluation
model = make_model()
optimizer = torch.optim.AdamW(model.parameters())
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
model, optimizer, training, validation, scheduler = accelerator.prepare(
    model, optimizer, training, validation, scheduler)
for epoch in range(2):
    model.train()
    for x, y in training:
        with accelerator.accumulate(model):
            with timed("forward"):
                p = model(x)
            loss = mse(p, y)
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step(); scheduler.step(); optimizer.zero_grad()
        print(loss.item().hex(), scheduler.get_last_lr())
    model.eval()
    with torch.no_grad(), timed("evaluation"):
        for x, y in validation:
            print(accelerator.gather_for_metrics(mse(model(x), y)).item().hex())
    accelerator.save_state(f"state/{epoch}")
tell_state(model)
""",
            *(8, 16, 2, 6),
            roles=("training", "evaluation"),
            without=("recompute",),
            also=("evaluation", "checkpoint"),
        ),
        ("accelerate",),
        (
            "accelerate: prepared loaders, optimizer, scheduler; `accumulate`",
            "`accelerate launch` under `trainprof run`",
        ),
        loaders=2,
        commands=((), ("accelerate", "launch", "--cpu")),
    ),
    "datasets in a loader": Framework(
        Style(
            """
import datasets

def rows():
    for number in range(24):
        yield {"x": [number / 24] * 8, "y": [1.0]}

model = make_model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
table = datasets.Dataset.from_list(list(rows())).with_format("torch")
stream = datasets.IterableDataset.from_generator(rows).with_format("torch")
loaders = [
    DataLoader(table, batch_size=4, shuffle=True, num_workers=1),  # builds training
    DataLoader(stream, batch_size=4),  # builds training
]
for loader in loaders:
    for epoch in range(2):
        for batch in loader:
            with timed("forward"):
                p = model(batch["x"])
            loss = mse(p, batch["y"])
            optimizer.zero_grad(); loss.backward(); optimizer.step()
            print(loss.item().hex())
tell_state(model)
""",
            *(24, 24, 4),
        ),
        ("datasets",),
        ("Hugging Face datasets in a DataLoader, stored and streamed",),
        loaders=2,
    ),
    "datasets alone": Framework(
        Style(
            """
import datasets

class Loss(nn.MSELoss):
    def forward(self, p, y):
        with timed("loss"):
            time.sleep(0.004)
            return super().forward(p, y)

criterion, model = Loss(), make_model(0)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
table = {"x": torch.randn(24, 8).tolist(), "y": torch.randn(24, 1).tolist()}
data = datasets.Dataset.from_dict(table).with_format("torch")
for epoch in range(2):
    for batch in data.shuffle(seed=epoch).iter(batch_size=4):
        loss = criterion(model(batch["x"]), batch["y"])
        optimizer.zero_grad(); loss.backward(); optimizer.step()
        print(loss.item().hex())
tell_state(model)
""",
            *(12, 12, 0),
            key="loss",
            roles=(),
            without=("evaluation", "data_wait", "first_batch"),
        ),
        ("datasets",),
        ("Hugging Face datasets without a DataLoader",),
        loaders=0,
    ),
    "StatefulDataLoader": Framework(
        Style(
            """
from torchdata.stateful_dataloader import StatefulDataLoader

class SlowRows(Dataset):
    def __len__(self):
        return 24

    def __getitem__(self, i):
        time.sleep(0.002)
        return torch.full((8,), i / 24), torch.ones(1)

def learn(x, y):
    with timed("forward"):
        p = model(x)
    loss = mse(p, y)
    optimizer.zero_grad(); loss.backward(); optimizer.step()
    print(loss.item().hex(), sorted(loader.state_dict().items()))

model = make_model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for workers in (0, 2):
    state = None
    for attempt in range(2):  # the second resumes in mid-epoch
        loader = StatefulDataLoader(SlowRows(), 4, num_workers=workers)  # builds training
        if state is not None:
            loader.load_state_dict(state)
        for number, (x, y) in enumerate(loader):
            learn(x, y)
            state = loader.state_dict()
            if attempt == 0 and number == 3:
                break
    for x, y in loader:
        learn(x, y)
tell_state(model)
""",
            *(24, 24, 6),
            passes=((4, 4), (2, 2), (6, 6)) * 2,
        ),
        ("torchdata",),
        tuple(
            f"torchdata's StatefulDataLoader, resumed in mid-epoch, {workers} workers"
            for workers in ("0", "2")
        ),
        loaders=2,
    ),
    "torch_geometric": Framework(
        Style(
            """
from torch_geometric.data import Data
from torch_geometric.loader import DataLoader
from torch_geometric.nn import GCNConv, global_mean_pool

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second, self.head = GCNConv(8, 16), GCNConv(16, 16), nn.Linear(16, 1)

    def forward(self, graphs):
        time.sleep(0.004)
        x = self.first(graphs.x, graphs.edge_index).relu()
        return self.head(global_mean_pool(self.second(x, graphs.edge_index), graphs.batch))

def graph():
    edges = torch.randint(6, (2, 12))
    return Data(x=torch.randn(6, 8), edge_index=edges, y=torch.randn(1, 1))

model = Net()
optimizer = torch.optim.Adam(model.parameters())
training = DataLoader([graph() for _ in range(24)], batch_size=4, shuffle=True)  # builds training
validation = DataLoader([graph() for _ in range(8)], batch_size=4)  # builds evaluation
for epoch in range(2):
    model.train()
    for graphs in training:
        with timed("forward"):
            p = model(graphs)
        loss = mse(p, graphs.y)
        optimizer.zero_grad(); loss.backward(); optimizer.step()
        print(loss.item().hex())
    model.eval()
    with torch.no_grad(), timed("evaluation"):
        for graphs in validation:
            print(mse(model(graphs), graphs.y).item().hex())
tell_state(model)
""",
            *(12, 12, 2, 4),
            roles=("training", "evaluation"),
            without=("recompute",),
            also=("evaluation",),
        ),
        ("torch_geometric",),
        ("torch_geometric's loaders and layers",),
        loaders=2,
    ),
}


CASES = [
    pytest.param(
        framework,
        id=name,
        marks=[
            *(pytest.mark.proves("Frameworks", row) for row in framework.rows),
            pytest.mark.frameworks(*framework.needs),
        ],
    )
    for name, framework in FRAMEWORKS.items()
]


@pytest.mark.parametrize("framework", CASES)
def test_same_losses_right_counts_and_a_planted_cost(framework: Framework, tmp_path: Path) -> None:
    script = f"{FRAMEWORK_PREAMBLE}{framework.style.script}\ntell()\n"
    if not framework.needs_compiler:
        script = without_compiler(script)
    plain = _output([sys.executable], tmp_path / "plain", script).splitlines()[:-1]
    for command in framework.commands:
        _check_profiled(framework, script, command, plain, tmp_path / "-".join(("ours", *command)))


RELOADING = """
import time
from torch.utils.data import Dataset

class Asleep(Dataset):
    rows = tensors(24)
    def __len__(self):
        return len(self.rows)
    def __getitem__(self, index):
        time.sleep(0.03)  # two workers are worth it
        return self.rows[index]

class Reloading(Regression):
    def train_dataloader(self):
        starting = lambda worker: time.sleep(0.2)
        return DataLoader(Asleep(), batch_size=4, num_workers=2, worker_init_fn=starting)

trainer = L.Trainer(**{**quiet, "max_epochs": 3}, enable_checkpointing=False,
                    reload_dataloaders_every_n_epochs=1)
trainer.fit(Reloading())
"""


@pytest.mark.frameworks("lightning")
def test_what_starts_of_workers_take_goes_by_the_argument_of_lightning(tmp_path: Path) -> None:
    script = f"{FRAMEWORK_PREAMBLE}{LIGHTNING}{RELOADING}"
    _output([*TRAINPROF, "-o", "run"], tmp_path / "ours", script)
    summary = json.loads((tmp_path / "ours" / "run" / "summary.json").read_text())
    (loader,) = summary["loaders"]
    assert (loader["passes"], loader["built"], summary["training"]["epochs"]) == (3, 3, 3)
    restarts = next(x for x in summary["findings"] if x["id"] == "worker_restart")
    assert restarts["evidence"]["starts"] == loader["init_s"]["n"] == 5
    assert "reload_dataloaders_every_n_epochs=0" in restarts["advice"]


def _check_profiled(
    framework: Framework, script: str, command: Sequence[str], plain: list[str], directory: Path
) -> None:
    """Asserts what is true of the script started by a command; `plain` is what it is to print."""
    style = framework.style
    directory.mkdir()
    for run in (directory / f"run-{attempt}" for attempt in attempts()):
        ours = _output([*TRAINPROF, "-o", "run", *command], run, script).splitlines()
        assert ours[:-1] == plain
        summary = json.loads((run / "run" / "summary.json").read_text())
        truth = json.loads(ours[-1])
        check_counts(style, summary)
        _check_loaders(framework, script, summary)
        _check_evaluation(summary, truth["seconds"])
        missed = missed_costs(style, summary, truth)
        if not missed:
            break
    assert not missed


def _output(launcher: Sequence[str], directory: Path, script: str) -> str:
    directory.mkdir()
    env = {
        "HF_HUB_OFFLINE": "1",
        "HF_HOME": str(directory / "cache"),
        "PATH": path_with_scripts(),
    }
    return output(launcher, directory, script, env=env)


def _check_loaders(framework: Framework, script: str, summary: dict[str, Any]) -> None:
    """Each loader is named by a line that the script says builds it, and every such line is."""
    expected = {
        (f"script.py:{number}", role)
        for number, line in enumerate(script.splitlines(), 1)
        if MARK in line
        for role in line.split(MARK)[1].split(", ")
    }
    assert {(loader["site"], loader["role"]) for loader in summary["loaders"]} == expected
    assert len(summary["loaders"]) == framework.loaders
    assert {loader["built_by"] for loader in summary["loaders"]} <= {framework.built_by}
    assert sum(x["steps"] for x in summary["epochs"]) in (0, summary["training"]["steps"])


def _check_evaluation(summary: dict[str, Any], seconds: dict[str, float]) -> None:
    evaluation_s = summary["ledger"]["seconds"]["evaluation"]
    if "other at least" in seconds:
        assert summary["ledger"]["seconds"]["other"] >= seconds["other at least"]
    if "evaluation at least" in seconds:
        assert seconds["evaluation at least"] < evaluation_s < seconds["evaluation at most"]
