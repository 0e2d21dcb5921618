"""Faults of loaders whose data lies in memory: asking for it costs more than making it."""

from __future__ import annotations

from planted.draw import Draw
from planted.script import EVERYWHERE, HERE, IN_MEMORY, STREAM, Case, Parts, script

WITH_GUARD = ("function", "class Trainer", "hooks", "several files")
STEPS = 300

ROWS = """\
class Rows(Dataset):
    def __init__(self, count):
        self.x, self.y = torch.randn(count, 64), torch.randn(count, 1)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        return self.x[index], self.y[index]
"""


def sample_by_sample(draw: Draw) -> Case:
    """Rows of tensors, taken one after the other and put together again."""
    batch = draw.one_of((64, 32, 128, 256))
    name, data = draw.one_of((("samples", IN_MEMORY), ("Rows", ROWS)))
    parts = Parts(
        loader=f"DataLoader({name}({STEPS * batch}), batch_size={batch}, shuffle=True)  {HERE}",
        data=data,
        model=_small_model(draw),
        epochs=3,
    )
    style = draw.one_of(EVERYWHERE)
    planted = f"batches of {batch} rows in memory"
    return Case("sample_by_sample", planted, style, script(style, parts), "sample_by_sample")


def needless_workers(draw: Draw) -> Case:
    """Workers for batches that are made in less time than they are handed over."""
    batch, workers = draw.one_of((8, 4, 16)), draw.one_of((2, 1))
    options = f"batch_size={batch}, num_workers={workers}, persistent_workers=True"
    parts = Parts(
        loader=f"DataLoader(Stream(), {options})  {HERE}",
        data=STREAM.format(samples=STEPS * batch, work="pass"),
        model=_small_model(draw),
        epochs=3,
    )
    style = draw.one_of(WITH_GUARD)
    planted = f"{workers} workers for batches of {batch} random rows"
    return Case("needless_workers", planted, style, script(style, parts), "worker_restart")


def _small_model(draw: Draw) -> str:
    width = draw.one_of((64, 32, 128))
    return f"nn.Sequential(nn.Linear(64, {width}), nn.ReLU(), nn.Linear({width}, 1))"
