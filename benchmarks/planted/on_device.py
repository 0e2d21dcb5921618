"""Training on a simulated accelerator (tests/support/simgpu), whose times are what is planted."""

from __future__ import annotations

from planted.draw import Draw
from planted.script import HERE, MAIN, Case

BODY = """\
{setup}
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 1)).to("simgpu")
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, foreach=False)
data = TensorDataset(torch.randn({samples}, 64), torch.randn({samples}, 1))
"""
LOOP = """\
step = 0
for x, y in DataLoader(data, batch_size=None, sampler=BatchSampler({sampler}, 16, True)):
    x, y = {move}
    losses = nn.functional.mse_loss(model(x), y, reduction="none")
    optimizer.zero_grad()
    losses.mean().backward()
    optimizer.step()
    step += 1
{after}
"""
# torch loads the device's package by itself, and is to come first.
IMPORTS = """\
import torch
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, SequentialSampler, TensorDataset

import simgpu
"""
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


def device_at_work(draw: Draw) -> Case:
    """A value is fetched in each step, and the device works for as long all the same."""
    after = "    if losses.mean().item() < 0:\n        break\n"
    files = _script(draw, QUICKLY, LOOP, after, operation_us=draw.whole(800, 2000))
    return Case("device_at_work", ".item() each step on a device at work", *files)


def _script(
    draw: Draw,
    move: str,
    loop: str,
    after: str,
    *,
    operation_us: int = 300,
    copy_us: int = 20,
    value_us: int = 5,
) -> tuple[str, dict[str, str]]:
    """Returns the style and the files."""
    costs = f"{operation_us}_000, {copy_us}_000, 0, {value_us}_000"
    sampler = "SequentialSampler(data)"
    head = BODY.format(setup=f"simgpu.device.set_costs_ns({costs})", samples=16 * 200)
    body = head + loop.format(sampler=sampler, move=move, after=after)
    style = draw.one_of(("plain loop", "function"))
    if style == "function":
        lines = "".join(f"    {line}\n" if line else "\n" for line in body.splitlines())
        body = f'def main():\n{lines}\n\nif __name__ == "__main__":\n    main()\n'
    return style, {MAIN: f"{IMPORTS}\n\n{body}"}
