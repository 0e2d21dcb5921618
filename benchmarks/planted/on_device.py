"""Training on a simulated accelerator (tests/support/simgpu), whose times are what is planted."""

from __future__ import annotations

from planted.draw import Draw
from planted.script import HERE, MAIN, Case

BODY = """\
{setup}
torch.manual_seed(0)
{model}
model = nn.Sequential(*layers, nn.Linear(64, 1)).to("simgpu")
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, foreach=False)
data = TensorDataset(torch.randn({samples}, 64), torch.randn({samples}, 1))
"""
LOOP = """\
step = 0
for x, y in DataLoader(data, batch_size=None, sampler=BatchSampler({sampler}, 16, True)):
    x, y = {move}
    predicted = model(x){called}
    losses = nn.functional.mse_loss(predicted, y, reduction="none")
    optimizer.zero_grad()
    losses.mean().backward()
    optimizer.step()
    step += 1
{after}
"""
# torch loads the device's package by itself, and is to come first.
IMPORTS = """\
import time

import torch
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, SequentialSampler, TensorDataset

import simgpu
"""
LAYERS = "layers = [one for _ in range({count}) for one in (nn.Linear(64, 64), nn.ReLU())]"
PYTHON = """\
class Weights(nn.Module):
    def forward(self, x):
        until = time.thread_time() + {seconds:.6f}  {here}
        while time.thread_time() < until:  {here}
            weight = sum(1 / (k + 1) for k in range(50))  {here}
        return x * weight


layers = [nn.Linear(64, 64), Weights()]"""
QUICKLY = "x.to('simgpu', non_blocking=True), y.to('simgpu', non_blocking=True)"


def exposed_syncs(draw: Draw) -> Case:
    """Each sample's loss is fetched by itself, for a table."""
    value_us, every = draw.whole(150, 400), draw.one_of((1, 2))
    after = f"""\
    if step % {every} == 0:
        for row in losses.detach().flatten():
            seen.append(row.item())  {HERE}
"""
    files = _script(draw, QUICKLY, f"seen = []\n{LOOP}", after, value_us=value_us)
    planted = f"16 values of {value_us} us each fetched in each of {every} steps"
    return Case("exposed_syncs", planted, *files, "exposed_syncs")


def blocking_copies(draw: Draw) -> Case:
    """Batches are copied from plain memory, while the device waits."""
    copy_us, operation_us = draw.whole(1500, 6000), draw.whole(100, 250)
    move = f"x.to('simgpu'), y.to('simgpu')  {HERE}"
    files = _script(draw, move, LOOP, "", copy_us=copy_us, operation_us=operation_us)
    planted = f"two copies of {copy_us / 1000:.2g} ms a step"
    return Case("blocking_copies", planted, *files, "blocking_copies")


def emptied_cache(draw: Draw) -> Case:
    """Memory that is kept is given back to the device in each step."""
    emptying_us = draw.whole(600, 3000)
    after = f"    torch.simgpu.empty_cache()  {HERE}\n"
    setup = f"\nsimgpu.device.set_emptying_ns({emptying_us}_000)"
    files = _script(draw, QUICKLY, LOOP, after, operation_us=30, setup=setup)
    return Case("emptied_cache", f"{emptying_us / 1000:.2g} ms a step", *files, "exposed_syncs")


def cache_emptied_once(draw: Draw) -> Case:
    """It is given back every hundredth step, on a device at work."""
    after = "    if step % 100 == 0:\n        torch.simgpu.empty_cache()\n"
    setup = f"\nsimgpu.device.set_emptying_ns({draw.whole(600, 3000)}_000)"
    files = _script(draw, QUICKLY, LOOP, after, operation_us=draw.whole(800, 2000), setup=setup)
    return Case("cache_emptied_once", "empty_cache() every 100th step", *files)


def device_at_work(draw: Draw) -> Case:
    """A value is fetched in each step, and the device works for as long all the same."""
    after = "    if losses.mean().item() < 0:\n        break\n"
    files = _script(draw, QUICKLY, LOOP, after, operation_us=draw.whole(800, 2000))
    return Case("device_at_work", ".item() each step on a device at work", *files)


def launch_bound(draw: Draw) -> Case:
    """A model of many small layers: the device is done with each sooner than the next one comes."""
    layers, operation_us = draw.whole(12, 24), draw.whole(1, 4)
    model = LAYERS.format(count=layers)
    files = _script(
        draw,
        QUICKLY,
        LOOP,
        "",
        operation_us=operation_us,
        model=model,
        called=f"  {HERE}",
        steps=800,
    )
    planted = f"{layers} layers, operators of {operation_us} us"
    return Case("launch_bound", planted, *files, "launch_bound")


def python_on_device(draw: Draw) -> Case:
    """The model does something in Python for each sample, and the device waits for it."""
    python_ms = draw.whole(8, 16)
    model = PYTHON.format(here=HERE, seconds=python_ms / 1000)
    files = _script(draw, QUICKLY, LOOP, "", operation_us=5, model=model)
    planted = f"{python_ms} ms of Python in each forward"
    return Case("python_on_device", planted, *files, "python_in_model")


def _script(
    draw: Draw,
    move: str,
    loop: str,
    after: str,
    *,
    operation_us: int = 300,
    copy_us: int = 20,
    value_us: int = 5,
    model: str = LAYERS.format(count=1),
    called: str = "",
    steps: int = 200,
    setup: str = "",
) -> tuple[str, dict[str, str]]:
    """Returns the style and the files."""
    costs = f"{operation_us}_000, {copy_us}_000, 0, {value_us}_000"
    sampler = "SequentialSampler(data)"
    setup = f"simgpu.device.set_costs_ns({costs}){setup}"
    head = BODY.format(setup=setup, samples=16 * steps, model=model)
    body = head + loop.format(sampler=sampler, move=move, after=after, called=called)
    style = draw.one_of(("plain loop", "function"))
    if style == "function":
        lines = "".join(f"    {line}\n" if line else "\n" for line in body.splitlines())
        body = f'def main():\n{lines}\n\nif __name__ == "__main__":\n    main()\n'
    return style, {MAIN: f"{IMPORTS}\n\n{body}"}
