"""Loaders that are waited for: by what they do, and by how many workers do it."""

from __future__ import annotations

from planted.draw import Draw
from planted.script import (
    BURN,
    DATASET,
    EVERYWHERE,
    HERE,
    IN_MEMORY,
    STREAM,
    WITH_GUARD,
    Case,
    Parts,
    as_ms,
    script,
)
from planted.sizes import HANDING_OVER_S, PASSES, STEPPING_S, pass_batches, percent


def serial_loading(draw: Draw) -> Case:
    """The training process makes the batches itself, and sleeps over it (a disk, a server)."""
    share, compute_s = draw.between(0.08, 0.85), draw.between(0.005, 0.02)
    making_s, batch = compute_s * share / (1 - share), draw.one_of((8, 4, 16))
    passes, style = draw.one_of(PASSES), draw.one_of(WITH_GUARD + EVERYWHERE)
    batches = pass_batches(draw, compute_s + making_s, passes)
    form = draw.one_of((("Pictures", DATASET), ("Stream", STREAM)))
    work = f"time.sleep({making_s / batch:.6f})"
    parts = Parts(
        loader=f"DataLoader({form[0]}(), batch_size={batch})  {HERE}",
        data=form[1].format(samples=batches * batch, work=work),
        compute_s=compute_s,
        epochs=passes,
    )
    planted = f"{as_ms(making_s)} asleep making a batch, {percent(share)} of a step"
    return Case("serial_loading", planted, style, script(style, parts), "serial_loading")


def serial_decoding(draw: Draw) -> Case:
    """The same, on the CPU, with other cores free."""
    share, compute_s = draw.between(0.15, 0.6), draw.between(0.015, 0.03)
    making_s, batch = compute_s * share / (1 - share), draw.one_of((8, 4))
    style, passes = draw.one_of(WITH_GUARD), 2
    batches = pass_batches(draw, compute_s + making_s, passes)
    work = f"burn({making_s / batch:.6f})  {HERE}"
    # Where workers may as well lose, its own line is the place.
    burning = BURN.replace("until:\n", f"until:  {HERE}\n").replace("pass\n", f"pass  {HERE}\n")
    parts = Parts(
        loader=f"DataLoader(Pictures(), batch_size={batch}, shuffle=True)  {HERE}",
        data=burning + "\n\n" + DATASET.format(samples=batches * batch, work=work),
        compute_s=compute_s,
        epochs=passes,
    )
    planted = f"{as_ms(making_s)} of CPU making a batch, {percent(share)} of a step"
    return Case("serial_decoding", planted, style, script(style, parts), "serial_loading")


def too_few_workers(draw: Draw) -> Case:
    share, compute_s = draw.between(0.1, 0.75), draw.between(0.006, 0.015)
    workers, batch = draw.one_of((1, 2)), draw.one_of((8, 4))
    making_s = workers * (compute_s + HANDING_OVER_S) / (1 - share)
    style, passes = draw.one_of(WITH_GUARD + EVERYWHERE), draw.one_of((1, 2))
    batches = pass_batches(draw, compute_s / (1 - share), passes)
    form = draw.one_of((("Pictures", DATASET), ("Stream", STREAM)))
    work = f"time.sleep({making_s / batch:.6f})"
    options = f"batch_size={batch}, num_workers={workers}, persistent_workers=True"
    parts = Parts(
        loader=f"DataLoader({form[0]}(), {options})  {HERE}",
        data=form[1].format(samples=batches * batch, work=work),
        compute_s=compute_s,
        epochs=passes,
    )
    planted = f"{workers} workers, {as_ms(making_s)} asleep a batch, waits {percent(share)}"
    return Case("too_few_workers", planted, style, script(style, parts), "too_few_workers")


def saturated_cpu(draw: Draw) -> Case:
    """As many workers as cores, all of them at work, and training waits."""
    making_s, compute_s = draw.between(0.05, 0.12), draw.between(0.002, 0.006)
    style, batch = draw.one_of(WITH_GUARD), 4
    batches = pass_batches(draw, making_s / 2, 2, least=50)
    data = f"""\
class Pictures(Dataset):
    def __len__(self):
        return {batches * batch}

    def decode(self, index):
        until = time.thread_time() + {making_s / batch:.6f}  {HERE}
        while time.thread_time() < until:  {HERE}
            total = sum(range(200))  {HERE}
        return torch.full((64,), float(total))  {HERE}

    def __getitem__(self, index):
        return self.decode(index), torch.randn(1)
"""
    options = f"batch_size={batch}, num_workers=os.cpu_count(), persistent_workers=True"
    parts = Parts(
        loader=f"DataLoader(Pictures(), {options})",
        data=data,
        compute_s=compute_s,
        epochs=2,
        imports="import os\n",
    )
    planted = f"{as_ms(making_s)} of CPU a batch on every core, {as_ms(compute_s)} to train on it"
    return Case("saturated_cpu", planted, style, script(style, parts), "saturated_cpu")


def slow_samples(draw: Draw) -> Case:
    """One sample in some hundred takes so long that the buffer runs dry."""
    share, compute_s, batch = draw.between(0.12, 0.6), 0.006, 4
    workers, every = draw.one_of((2, 1, 3)), draw.one_of((20, 30))
    step_s = compute_s + HANDING_OVER_S
    # What is buffered hides the beginning.
    late_s = every * step_s * share / (1 - share) + 2 * workers * step_s
    style, batches = draw.one_of(WITH_GUARD + EVERYWHERE), every * draw.whole(3, 4)
    work = f"time.sleep({late_s:.6f} if index % {every * batch} == 37 else 0.0005)"
    parts = Parts(
        loader=f"DataLoader(Pictures(), batch_size={batch}, num_workers={workers})  {HERE}",
        data=DATASET.format(samples=batches * batch, work=work),
        compute_s=compute_s,
        epochs=1,
    )
    planted = f"one sample in {every * batch} takes {as_ms(late_s)}, waits {percent(share)}"
    return Case("slow_samples", planted, style, script(style, parts), "slow_samples")


def bursts(draw: Draw, options: str = "") -> tuple[Parts, str]:
    """Returns parts whose workers keep up on average, but have long batches to make in a row.

    And words for them.
    """
    compute_s, batch = draw.between(0.009, 0.014), 4
    longs, slower = draw.whole(8, 14), draw.between(1.6, 2.0)
    period = 2 * longs + draw.whole(6, 10)
    long_s, short_s = 2 * slower * compute_s, 0.3 * compute_s
    work = (
        f"time.sleep(({long_s:.6f} if index // {batch} % {period} < {longs} else {short_s:.6f}) "
        f"/ {batch})"
    )
    workers = f"num_workers=2, persistent_workers=True{options}"
    parts = Parts(
        loader=f"DataLoader(Pictures(), batch_size={batch}, {workers})  {HERE}",
        data=DATASET.format(samples=4 * period * batch, work=work),
        compute_s=compute_s,
        epochs=2,
    )
    return parts, f"{longs} batches of {as_ms(long_s)} in each {period}, others {as_ms(short_s)}"


def uneven_batches(draw: Draw) -> Case:
    """Ten batches in a row take longer than training, those around them shorter."""
    (parts, planted), style = bursts(draw), draw.one_of(WITH_GUARD)
    return Case("uneven_batches", planted, style, script(style, parts), "slow_samples")


def idle_workers(draw: Draw) -> Case:
    """Fewer shards than workers: one worker has most of the data, or all."""
    compute_s, batch = draw.between(0.006, 0.012), draw.one_of((4, 8))
    workers, style = draw.one_of((2, 3)), draw.one_of(WITH_GUARD)
    making_s = compute_s * draw.between(1.5, 2.2)
    batches = pass_batches(draw, making_s, 2)
    data = f"""\
class Shards(IterableDataset):
    def __init__(self, shards):
        self.shards = shards

    def __iter__(self):
        info = torch.utils.data.get_worker_info()
        for shard in self.shards[info.id :: info.num_workers] if info else self.shards:
            for _ in range(shard):
                time.sleep({making_s / batch:.6f})
                yield torch.randn(64), torch.randn(1)
"""
    parts = Parts(
        loader=(
            f"DataLoader(Shards([{batches * batch}]), batch_size={batch}, num_workers={workers}, "
            f"persistent_workers=True)  {HERE}"
        ),
        data=data,
        compute_s=compute_s,
        epochs=2,
    )
    planted = (
        f"one shard for {workers} workers, {as_ms(making_s)} a batch, {as_ms(compute_s)} a step"
    )
    return Case("idle_workers", planted, style, script(style, parts), "too_few_workers")


def slow_collate(draw: Draw) -> Case:
    """Samples are put together in Python, element by element."""
    share, compute_s, batch = draw.between(0.15, 0.6), draw.between(0.008, 0.02), 8
    workers, style = draw.one_of((0, 1)), draw.one_of(WITH_GUARD + EVERYWHERE)
    way = draw.one_of(("CPU", "asleep"))
    step_s = compute_s + STEPPING_S + (HANDING_OVER_S if workers else 0)
    # A worker puts the next batch together while training is at work on this one.
    padding_s = step_s / (1 - share) if workers else step_s * share / (1 - share)
    batches = pass_batches(draw, step_s / (1 - share), 2)
    pad = f"time.sleep({padding_s:.6f})  {HERE}"
    if way == "CPU":
        pad = f"""\
until = time.thread_time() + {padding_s:.6f}  {HERE}
    while time.thread_time() < until:  {HERE}
        width = max(len(x) for x, _ in samples)  {HERE}"""
    data = f"""\
{IN_MEMORY}

def pad_samples(samples):  {HERE}
    {pad}
    return torch.stack([x for x, _ in samples]), torch.stack([y for _, y in samples])  {HERE}
"""
    options = f"batch_size={batch}, num_workers={workers}, collate_fn=pad_samples"
    parts = Parts(
        loader=f"DataLoader(samples({batches * batch}), {options})",
        data=data,
        compute_s=compute_s,
        epochs=2,
    )
    planted = f"{as_ms(padding_s)} ({way}) to put a batch together, {workers} workers, waits "
    planted += percent(share)
    # What a worker's batch takes to be handed over is a bound: the step may be shorter than that.
    gain = None if workers else 1 / (1 - share)
    return Case("slow_collate", planted, style, script(style, parts), "slow_collate", gain)


def slow_receive(draw: Draw) -> Case:
    """Many small tensors, each of them asked for at the worker."""
    tensors, compute_s = draw.whole(80, 400), draw.between(0.004, 0.012)
    style = draw.one_of(WITH_GUARD)
    data = f"""\
class Boxes(Dataset):
    def __len__(self):
        return 360

    def __getitem__(self, index):
        return [torch.zeros(4) for _ in range({tensors // 4})], torch.randn(64), torch.randn(1)


def keep(samples):
    boxes = [box for boxes, _, _ in samples for box in boxes]
    return (torch.stack([x for _, x, _ in samples]), boxes), torch.stack([y for _, _, y in samples])
"""
    options = "batch_size=4, num_workers=1, collate_fn=keep, persistent_workers=True"
    parts = Parts(
        loader=f"DataLoader(Boxes(), {options})  {HERE}",
        data=data,
        compute_s=compute_s,
        epochs=1,
        each_batch="x, boxes = x",
    )
    planted = f"{tensors} tensors a batch, {as_ms(compute_s)} to train on it"
    return Case("slow_receive", planted, style, script(style, parts), "slow_receive")


def slow_sampler(draw: Draw) -> Case:
    """Indices are drawn by code that takes its time, in the training process."""
    share, compute_s, batch = draw.between(0.1, 0.7), draw.between(0.005, 0.015), 4
    drawing_s = compute_s * share / (1 - share)
    style, workers = draw.one_of(WITH_GUARD), draw.one_of((2, 1, 0))
    batches = pass_batches(draw, compute_s + drawing_s, 2)
    data = f"""\
{IN_MEMORY}

class HardNegatives(torch.utils.data.Sampler):
    def __len__(self):
        return {batches * batch}

    def __iter__(self):
        for index in range({batches * batch}):
            time.sleep({drawing_s / batch:.6f})  {HERE}
            yield index
"""
    options = f"batch_size={batch}, sampler=HardNegatives(), num_workers={workers}, "
    options += f"persistent_workers={workers > 0}"
    parts = Parts(
        loader=f"DataLoader(samples({batches * batch}), {options})  {HERE}",
        data=data,
        compute_s=compute_s,
        epochs=2,
    )
    planted = f"{as_ms(drawing_s)} drawing the indices of a batch, {percent(share)} of a step"
    gain = 1 / (1 - share)
    return Case("slow_sampler", planted, style, script(style, parts), "slow_sampler", gain)
