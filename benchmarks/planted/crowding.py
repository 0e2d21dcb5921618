"""Workers and training that want the cores: more than there are, and no more."""

from __future__ import annotations

from dataclasses import replace

from planted.draw import Draw
from planted.script import DATASET, HERE, WITH_GUARD, Case, Parts, as_ms, script

BATCH = 4


def crowded_cores(draw: Draw) -> Case:
    """A worker for each core, whose batches are there in time, and torch wants all cores, too."""
    compute_s, times = draw.between(0.016, 0.026), draw.between(0.7, 1.1)
    making_s = compute_s * times
    style = draw.one_of(WITH_GUARD)
    parts = computing_beside(compute_s, making_s, "os.cpu_count()", HERE)
    parts = replace(parts, setup="torch.set_num_threads(os.cpu_count())")
    planted = f"{as_ms(making_s)} of CPU a batch beside {as_ms(compute_s)} on all cores"
    return Case("crowded_cores", planted, style, script(style, parts), "saturated_cpu")


def computing_beside(compute_s: float, making_s: float, workers: str, comment: str = "") -> Parts:
    """Returns a model that takes so much of the CPU beside workers that do, too.

    Args:
        compute_s: Of torch's threads, by a step.
        making_s: Of one core, by a batch.
        workers: Expression of how many.
        comment: On the lines of what a batch takes.
    """
    data = f"""\
class Pictures(Dataset):
    def __len__(self):
        return {60 * BATCH}

    def decode(self, index):
        until = time.thread_time() + {making_s / BATCH:.6f}  {comment}
        while time.thread_time() < until:  {comment}
            total = sum(range(200))  {comment}
        return torch.full((64,), float(total))  {comment}

    def __getitem__(self, index):
        return self.decode(index), torch.randn(1)
"""
    definitions = f"""\
class Computing(nn.Module):
    def __init__(self):
        super().__init__()
        self.out, self.field = nn.Linear(64, 1), torch.randn(512, 512) / 512**0.5
        for _ in range(2):
            began = time.perf_counter()
            for _ in range(20):
                self.field @ self.field
            each = (time.perf_counter() - began) / 20
        self.times = max(round({compute_s:.6f} / each), 1)

    def forward(self, x):
        moving = self.field + x.mean()
        for _ in range(self.times):
            moving = moving @ self.field
        return self.out(x)
"""
    return Parts(
        loader=f"DataLoader(Pictures(), batch_size={BATCH}, num_workers={workers}, "
        "persistent_workers=True)",
        data=data,
        definitions=definitions,
        model="Computing()",
        epochs=4,
        imports="import os\n",
    )


def worker_threads(draw: Draw) -> Case:
    """NumPy computes with as many threads as there are cores, in each worker."""
    workers, batch = draw.one_of((2, 3)), draw.one_of((4, 8))
    style, compute_s = draw.one_of(WITH_GUARD), draw.between(0.01, 0.02)
    work = "(numpy.ones((512, 512), dtype=numpy.float32) @ BASIS).sum()"
    data = f"BASIS = numpy.ones((512, 512), dtype=numpy.float32) / 512\n\n\n{DATASET}"
    options = f"batch_size={batch}, num_workers={workers}, persistent_workers=True"
    parts = Parts(
        loader=f"DataLoader(Pictures(), {options})  {HERE}",
        imports="import numpy\n",
        data=data.format(samples=120 * batch, work=work),
        compute_s=compute_s,
        epochs=2,
    )
    planted = f"NumPy's threads in each of {workers} workers"
    return Case("worker_threads", planted, style, script(style, parts), "thread_count")


def torch_in_workers(draw: Draw) -> Case:
    """Each worker sets a number of torch's threads that was meant for one process alone."""
    times, workers = draw.whole(4, 8), draw.one_of((2, 3))
    style, compute_s = draw.one_of(WITH_GUARD), draw.between(0.01, 0.02)
    start = draw.one_of(("torch.set_num_threads({})", "begin_with({})"))
    parts = _products(f"{times} * os.cpu_count()", start, workers, compute_s, batch=8)
    planted = f"{times} threads of torch for each core in each of {workers} workers"
    return Case("torch_in_workers", planted, style, script(style, parts), "thread_count")


def one_thread_each(draw: Draw) -> Case:
    """Workers that say what torch does there by itself: one thread each, and batches in time."""
    style, compute_s = draw.one_of(WITH_GUARD), draw.between(0.03, 0.05)
    parts = _products("1", "torch.set_num_threads({})", 2, compute_s, batch=4, comment="")
    planted = "one thread of torch in each of 2 workers, batches in time"
    return Case("one_thread_each", planted, style, script(style, parts))


def _products(
    threads: str, start: str, workers: int, compute_s: float, batch: int, comment: str = HERE
) -> Parts:
    """Returns workers that multiply matrices.

    Args:
        threads: Expression of how many threads of torch each of them has.
        start: Of a worker, which sets them.
        workers: How many.
        compute_s: Of a step, asleep.
        batch: Samples of one.
        comment: On the line that sets them.
    """
    data = f"""\
def begin_with(threads):
    torch.set_num_threads(threads)  {comment if "begin_with" in start else ""}


def start(number):
    {start.format(threads)}  {comment}


"""
    # All of it in workers: a process that has computed with several threads must not fork them.
    work = "torch.ones(512, 512).addmm(torch.ones(512, 512), torch.ones(512, 512)).sum()"
    options = f"batch_size={batch}, num_workers={workers}, persistent_workers=True"
    return Parts(
        loader=f"DataLoader(Pictures(), {options}, worker_init_fn=start)",
        imports="import os\n",
        data=data + DATASET.format(samples=100 * batch, work=work),
        compute_s=compute_s,
        epochs=2,
    )
