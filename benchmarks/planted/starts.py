"""Faults of how a run, or each pass over the data, begins."""

from __future__ import annotations

from planted.draw import Draw
from planted.script import DATASET, HERE, IN_MEMORY, WITH_GUARD, Case, Parts, as_ms, script
from planted.sizes import STEPPING_S, enough_steps, percent


def worker_restart(draw: Draw) -> Case:
    """Workers that open something first are started anew in each of many short passes."""
    opening_s, compute_s = draw.between(0.08, 0.5), draw.between(0.006, 0.012)
    passes, batches, workers = draw.whole(5, 9), draw.whole(12, 20), draw.one_of((2, 1))
    style = draw.one_of(WITH_GUARD)
    data = f"""\
{IN_MEMORY}

def open_archive(worker):
    time.sleep({opening_s:.6f})
"""
    options = f"batch_size=8, num_workers={workers}, worker_init_fn=open_archive"
    parts = Parts(
        loader=f"DataLoader(samples({batches * 8}), {options})  {HERE}",
        data=data,
        compute_s=compute_s,
        epochs=passes,
    )
    planted = f"{passes} passes of {batches} steps, {as_ms(opening_s)} to open the data in each"
    return Case("worker_restart", planted, style, script(style, parts), "worker_restart")


def reopened_file(draw: Draw) -> Case:
    """The same, opened with a worker's first sample; the loader may be built anew as well."""
    opening_s, compute_s = draw.between(0.08, 0.5), draw.between(0.006, 0.012)
    passes, batches, workers = draw.whole(5, 9), draw.whole(12, 20), draw.one_of((2, 1))
    style, is_rebuilt = draw.one_of(WITH_GUARD), draw.one_of((False, True))
    data = f"""\
class Archive(Dataset):
    is_open = False

    def __len__(self):
        return {batches * 8}

    def __getitem__(self, index):
        if not self.is_open:
            time.sleep({opening_s:.6f})
            self.is_open = True
        return torch.randn(64), torch.randn(1)


class Passes:
    def __iter__(self):
        return iter(DataLoader(Archive(), batch_size=8, num_workers={workers}))  {HERE}
"""
    built_once = f"DataLoader(Archive(), batch_size=8, num_workers={workers})  {HERE}"
    parts = Parts(
        loader="Passes()" if is_rebuilt else built_once,
        data=data,
        compute_s=compute_s,
        epochs=passes,
    )
    planted = f"{passes} passes of {batches} steps, {as_ms(opening_s)} to open the data in each"
    if is_rebuilt:
        planted += ", by a loader of its own"
    return Case("reopened_file", planted, style, script(style, parts), "worker_restart")


def slow_pass_starts(draw: Draw) -> Case:
    """A sampler that works out an order, or a stream that parses its index, for each pass."""
    starting_s, compute_s = draw.between(0.08, 0.4), draw.between(0.006, 0.012)
    passes, batches, workers = draw.whole(5, 9), draw.whole(15, 25), draw.one_of((0, 2))
    planted = f"{passes} passes of {batches} steps, {as_ms(starting_s)} ahead of each"
    begins = f"""\
    def __iter__(self):
        until = time.thread_time() + {starting_s:.6f}  {HERE}
        while time.thread_time() < until:  {HERE}
            sum(range(50))  {HERE}
"""
    if draw.one_of((False, True)):
        made = f"""\
        for _ in range({batches * 8}):
            yield torch.randn(64), torch.randn(1)
"""
        data, loader = f"class Stream(IterableDataset):\n{begins}{made}", "DataLoader(Stream(), 8)"
        planted += ", by a stream"
    else:
        drawn = f"        yield from range({batches * 8})\n"
        length = f"    def __len__(self):\n        return {batches * 8}\n"
        data = (
            f"class ByLength(torch.utils.data.Sampler):\n{length}\n{begins}{drawn}\n\n{IN_MEMORY}"
        )
        options = f"8, sampler=ByLength(), num_workers={workers}"
        loader = f"DataLoader(samples({batches * 8}), {options})"
        planted += f", by a sampler, {workers} workers"
    parts = Parts(loader=loader, data=data, compute_s=compute_s, epochs=passes)
    style = draw.one_of(WITH_GUARD)
    return Case("slow_pass_starts", planted, style, script(style, parts), "worker_restart")


def iterator_by_step(draw: Draw) -> Case:
    """next(iter(loader)) in each step, by the training process, which sleeps over the batch."""
    share, compute_s = draw.between(0.12, 0.8), draw.between(0.006, 0.015)
    making_s, batch = (compute_s + STEPPING_S) * share / (1 - share), draw.one_of((8, 4))
    style, shuffles = draw.one_of(("plain loop", "function")), draw.one_of((True, False))
    data = DATASET.format(samples=50 * batch, work=f"time.sleep({making_s / batch:.6f})")
    parts = Parts(
        loader=None,
        definitions=f"""\
{data}

pictures = DataLoader(Pictures(), batch_size={batch}, shuffle={shuffles})  {HERE}
""",
        compute_s=compute_s,
        batch="next(iter(pictures))",
        steps=enough_steps(making_s),
    )
    planted = f"{as_ms(making_s)} making each batch of a new iterator, {percent(share)} of a step"
    return Case("iterator_by_step", planted, style, script(style, parts), "serial_loading")


def slow_first_batch(draw: Draw) -> Case:
    """The dataset is opened at the first sample, once."""
    opening_s, compute_s, workers = draw.between(3, 6), 0.012, draw.one_of((1, 2))
    style = draw.one_of(WITH_GUARD)
    data = f"""\
class Archive(Dataset):
    opened = False

    def __len__(self):
        return 640

    def __getitem__(self, index):
        if not self.opened:
            time.sleep({opening_s:.6f})
            self.opened = True
        return torch.randn(64), torch.randn(1)
"""
    options = f"batch_size=8, num_workers={workers}, persistent_workers=True"
    parts = Parts(
        loader=f"DataLoader(Archive(), {options})  {HERE}",
        data=data,
        compute_s=compute_s,
        epochs=1,
    )
    planted = f"{opening_s:.1f} s until the first batch, once"
    return Case("slow_first_batch", planted, style, script(style, parts), "worker_restart")
