"""Trials of real training scripts: the same output, and not a byte of the user's is changed."""

from __future__ import annotations

import sqlite3
from importlib.util import find_spec
from pathlib import Path

import pytest
from support.contained import escaped, faults, run_contained, snapshot
from support.session import run_plain
from support.styles import without_compiler

TRAINS = without_compiler("""
import csv, glob, logging, os, shutil, sqlite3, sys, warnings
warnings.simplefilter("ignore")
os.environ["TORCH_CPP_LOG_LEVEL"] = "ERROR"  # what it logs has the time in it
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

class Data(Dataset):
    def __len__(self):
        return 8
    def __getitem__(self, i):
        with open(f"cache/{i}.txt", "w") as file:
            file.write(str(i))
        with open("seen.txt", "a") as file:
            file.write(f"{i}\\n")
        return torch.ones(2) * i

def tried(function, *arguments):
    try:
        return function(*arguments)
    except Exception as error:
        return type(error).__name__, str(error)

def main():
    torch.manual_seed(0)
    logging.basicConfig(filename="train.log", level="INFO")
    os.makedirs("cache", exist_ok=True)
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    if os.path.exists("last.pt"):
        model.load_state_dict(torch.load("last.pt"))
        print("resumed")
    for context, workers in ((None, 2), ("spawn", 1)):
        loader = DataLoader(
            Data(), batch_size=4, num_workers=workers, multiprocessing_context=context
        )
        for x in loader:
            loss = model(x).sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print(loss.item().hex())
            with open("metrics.csv", "a", newline="") as file:
                csv.writer(file).writerow([loss.item()])
            logging.info("loss %s", loss.item())
        torch.save(model.state_dict(), "last.pt")
        torch.save(model.state_dict(), "é.pt")
        for name in ("last.pt", "é.pt"):
            for mapped in (False, True):
                print(torch.load(name, mmap=mapped)["weight"].tolist())
    print(sorted(os.listdir("cache")), sorted(open("seen.txt")), open("metrics.csv").read())
    np.save("a.npy", np.arange(4))
    print(np.load("a.npy"), np.load("a.npy", mmap_mode="r"))
    mapped = np.memmap("data.bin", mode="r+", shape=(4,), dtype="u1")
    mapped[0] = 77
    mapped.flush()
    print(open("data.bin", "rb").read())
    for name in ("runs.db", "file:runs.db?mode=rw"):
        database = sqlite3.connect(name, uri=True)
        database.execute("insert into t values (1)")
        database.commit()
        print(database.execute("select count(*) from t").fetchall())
        database.close()
    script = torch.jit.script(model)
    torch.jit.save(script, "s.ts")
    script.save("s2.ts")
    print([torch.jit.load(name)(torch.ones(1, 2)).item() for name in ("s.ts", "s2.ts")])
    print(tried(torch.save, 1, "no/such/x.pt"), tried(torch.load, "nope.pt"))
    raw = torch.from_file("raw.bin", shared=True, size=4, dtype=torch.uint8)
    raw.fill_(9)
    print(open("raw.bin", "rb").read())
    script._save_for_lite_interpreter("s.ptl")
    observer = torch.profiler.ExecutionTraceObserver()
    observer.register_callback("observed.json")
    observer.start()
    observer.stop()
    observer.unregister_callback()
    print([os.path.getsize(name) > 0 for name in ("s.ptl", "observed.json")])
    if torch.distributed.is_available():
        store = torch.distributed.FileStore("meeting", 1)
        store.set("name", "value")
        print(store.get("name"), os.path.exists("meeting"))
    shutil.rmtree(sorted(glob.glob("checkpoint-*"))[0])
    os.symlink("last.pt", "latest")
    print(list(torch.load("latest")), sorted(os.listdir()))
    sys.exit(3)

if __name__ == "__main__":
    main()
""")

FRAMEWORKS = """
import logging, os, sys, warnings
warnings.simplefilter("ignore")
import lightning as L, pandas, torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from safetensors import safe_open
from safetensors.torch import load_file
from tokenizers import Tokenizer, models
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from transformers import (
    PreTrainedTokenizerFast, PrinterCallback, Trainer, TrainingArguments, default_data_collator,
)

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 1)
    def forward(self, x, labels):
        y = self.layer(x)
        return {"loss": nn.functional.mse_loss(y, labels), "logits": y}

class Module(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 1)
    def training_step(self, batch, index):
        loss = nn.functional.mse_loss(self.layer(batch[0]), batch[1])
        self.log("loss", loss)
        print(loss.item().hex())
        return loss
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

def seen(top):
    return sorted((path, sorted(names), sorted(files)) for path, names, files in os.walk(top))

def trainer(tokenizer, data):
    arguments = TrainingArguments(
        "out", max_steps=6, save_steps=2, save_total_limit=2, per_device_train_batch_size=2,
        report_to="none", disable_tqdm=True, logging_steps=1, use_cpu=True,
        remove_unused_columns=False,
    )
    made = Trainer(
        Net(), arguments, train_dataset=data, processing_class=tokenizer,
        data_collator=default_data_collator,
    )
    made.remove_callback(PrinterCallback)
    return made

def main():
    torch.manual_seed(0)
    for name in ("lightning", "lightning.pytorch"):
        logging.getLogger(name).setLevel(logging.ERROR)
    logging.getLogger("transformers").setLevel(logging.ERROR)
    data = [{"x": torch.randn(2), "labels": torch.randn(1)} for _ in range(12)]
    words = Tokenizer(models.WordLevel({"a": 0, "[UNK]": 1}, unk_token="[UNK]"))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words)
    first = trainer(tokenizer, data)
    first.train()
    print([entry["loss"] for entry in first.state.log_history if "loss" in entry], seen("out"))
    trainer(tokenizer, data).train(resume_from_checkpoint=True)
    print(load_file("out/checkpoint-6/model.safetensors"))
    with safe_open("out/checkpoint-6/model.safetensors", framework="pt") as file:
        print(sorted(file.keys()), PreTrainedTokenizerFast.from_pretrained("out/checkpoint-6"))
    loader = DataLoader(TensorDataset(torch.randn(8, 2), torch.randn(8, 1)), batch_size=2)
    keep = ModelCheckpoint("ckpt", save_top_k=1, monitor="loss", save_last=True)
    L.Trainer(
        max_epochs=2, accelerator="cpu", enable_progress_bar=False, enable_model_summary=False,
        callbacks=[keep], logger=CSVLogger("logs", flush_logs_every_n_steps=1), log_every_n_steps=1,
    ).fit(Module(), loader)
    print(seen("ckpt"), seen("logs"), open("logs/lightning_logs/version_1/metrics.csv").read())
    pandas.DataFrame({"a": [1]}).to_parquet("a.parquet")
    print(pandas.read_parquet("a.parquet"))
    print(torch.load(keep.last_model_path, weights_only=False)["epoch"], keep.best_model_path)

if __name__ == "__main__":
    main()
"""


def plant(tree: Path) -> None:
    """Leaves what earlier runs of both scripts have left."""
    import torch

    for name in ("checkpoint-1", "checkpoint-2", *(f"out/checkpoint-{i}" for i in (1, 2, 3))):
        (tree / name).mkdir(parents=True)
        (tree / name / "weights").write_text("old")
    torch.manual_seed(5)
    torch.save(torch.nn.Linear(2, 1).state_dict(), tree / "last.pt")
    (tree / "metrics.csv").write_text("old\n")
    (tree / "data.bin").write_bytes(b"abcd")
    database = sqlite3.connect(tree / "runs.db")
    database.execute("create table t(x)")
    database.commit()
    database.close()
    (tree / "logs" / "lightning_logs" / "version_0").mkdir(parents=True)
    (tree / "logs" / "lightning_logs" / "version_0" / "metrics.csv").write_text("old")
    (tree / "ckpt").mkdir()
    (tree / "ckpt" / "last.ckpt").write_text("old")


def check(tmp_path: Path, script: str, status: int) -> None:
    """Runs a script over both of two twins; the one of the trial is to stay as it is."""
    trees = (tmp_path / "plain" / "tree", tmp_path / "ours" / "tree")
    for tree in trees:
        plant(tree)
        (tree / "s.py").write_text(script)
    before = snapshot(trees[1])
    plain = run_plain(["s.py"], trees[0])
    ours = run_contained(["s.py"], trees[1], tmp_path / "run")
    assert snapshot(trees[1]) == before
    for one, other in ((ours.stdout, plain.stdout), (ours.stderr, plain.stderr)):
        assert one.replace(str(trees[1]), "TREE") == other.replace(str(trees[0]), "TREE")
    assert (ours.returncode, plain.returncode) == (status, status), plain.stderr
    assert faults(tmp_path / "run") == escaped(tmp_path / "run") == []


@pytest.mark.proves(
    "Same as under plain python", "a trial's writes, kept from your files and seen by it"
)
def test_a_script_that_resumes_logs_maps_and_rotates(tmp_path: Path) -> None:
    check(tmp_path, TRAINS, status=3)


KEEPS_LAST = """
import argparse, os, pathlib, shutil, tempfile
parser = argparse.ArgumentParser()
parser.add_argument("--out", type=pathlib.Path)
parser.add_argument("--model")
options = parser.parse_args()
with tempfile.TemporaryDirectory() as place:
    (pathlib.Path(place) / "x").write_text("gone again")
print(sorted(options.out.parent.glob(options.out.name + "*")))
options.out.mkdir(exist_ok=True)
for step in range(3):
    (options.out / f"{step}.pt").write_text(str(step))
    if step:
        (options.out / f"{step - 1}.pt").unlink()
shutil.copy(options.out / "2.pt", options.model)
print(os.listdir(options.out), open(options.model).read(), os.path.exists(options.model))
"""


@pytest.mark.parametrize("is_there", [False, True], ids=["made by it", "there before"])
def test_what_arguments_name_in_the_temporary_directory_is_left_as_it_is(
    tmp_path: Path, is_there: bool
) -> None:
    told = {}
    for side in ("plain", "ours"):
        here, out = tmp_path / side, tmp_path / f"{side}-out"
        (here / "models").mkdir(parents=True)
        (here / "s.py").write_text(KEEPS_LAST)
        if is_there:
            out.mkdir()
            (out / "0.pt").write_text("the user's")
        words = ["s.py", f"--out={out}", "--model", str(tmp_path / f"{side}.pt")]
        before = snapshot(tmp_path)
        if side == "plain":
            done = run_plain(words, here)
        else:
            done = run_contained(words, here, here / "run")
            kept = [seen for seen in snapshot(tmp_path) if not seen[0].startswith(str(here))]
            assert kept == [seen for seen in before if not seen[0].startswith(str(here))]
        assert (done.returncode, done.stderr) == (0, "")
        told[side] = done.stdout.replace(str(tmp_path / side), "HERE")
    assert told["ours"] == told["plain"]


@pytest.mark.frameworks
@pytest.mark.skipif(
    any(find_spec(name) is None for name in ("lightning", "transformers")),
    reason="a framework is not installed",
)
def test_frameworks_rotate_and_resume_their_checkpoints(tmp_path: Path) -> None:
    check(tmp_path, FRAMEWORKS, status=0)
