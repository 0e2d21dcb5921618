"""One planted fault each, of a size from just above what counts to most of the training."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from planted.computing import (
    anomaly_detection,
    competing_thread,
    dense_embeddings,
    discarded_gradients,
    double_precision,
    few_threads,
    module_hooks,
    repeated_forward,
    too_many_threads,
    unused_forward,
    unused_gradients,
)
from planted.crowding import crowded_cores
from planted.draw import Draw
from planted.growing import growing_backward
from planted.in_memory import needless_workers, sample_by_sample
from planted.on_device import (
    blocking_copies,
    exposed_syncs,
    launch_bound,
    python_on_device,
)
from planted.script import (
    BURN,
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
from planted.starts import reopened_file, slow_first_batch, slow_pass_starts, worker_restart
from planted.storage import storage_bound

# What a step takes beside what is planted, and what a worker's batch takes to be handed over.
STEPPING_S, HANDING_OVER_S = 0.001, 0.003

# `work` is what a sample costs.
DATASET = """\
class Pictures(Dataset):
    def __len__(self):
        return {samples}

    def __getitem__(self, index):
        {work}
        return torch.randn(64), torch.randn(1)
"""
# Of 60 to 120 steps, in so many passes.
PASSES = (2, 3, 4)


def serial_loading(draw: Draw) -> Case:
    """The training process makes the batches itself, and sleeps over it (a disk, a server)."""
    share, compute_s = draw.between(0.08, 0.85), draw.between(0.005, 0.02)
    making_s, batch = compute_s * share / (1 - share), draw.one_of((8, 4, 16))
    passes, style = draw.one_of(PASSES), draw.one_of(WITH_GUARD + EVERYWHERE)
    batches = _batches(draw, compute_s + making_s, passes)
    form = draw.one_of((("Pictures", DATASET), ("Stream", STREAM)))
    work = f"time.sleep({making_s / batch:.6f})"
    parts = Parts(
        loader=f"DataLoader({form[0]}(), batch_size={batch})  {HERE}",
        data=form[1].format(samples=batches * batch, work=work),
        compute_s=compute_s,
        epochs=passes,
    )
    planted = f"{as_ms(making_s)} asleep making a batch, {_percent(share)} of a step"
    return Case("serial_loading", planted, style, script(style, parts), "serial_loading")


def serial_decoding(draw: Draw) -> Case:
    """The same, on the CPU, with other cores free."""
    share, compute_s = draw.between(0.15, 0.6), draw.between(0.015, 0.03)
    making_s, batch = compute_s * share / (1 - share), draw.one_of((8, 4))
    style, passes = draw.one_of(WITH_GUARD), 2
    batches = _batches(draw, compute_s + making_s, passes)
    work = f"burn({making_s / batch:.6f})"
    parts = Parts(
        loader=f"DataLoader(Pictures(), batch_size={batch}, shuffle=True)  {HERE}",
        data=BURN + "\n\n" + DATASET.format(samples=batches * batch, work=work),
        compute_s=compute_s,
        epochs=passes,
    )
    planted = f"{as_ms(making_s)} of CPU making a batch, {_percent(share)} of a step"
    return Case("serial_decoding", planted, style, script(style, parts), "serial_loading")


def too_few_workers(draw: Draw) -> Case:
    share, compute_s = draw.between(0.1, 0.75), draw.between(0.006, 0.015)
    workers, batch = draw.one_of((1, 2)), draw.one_of((8, 4))
    making_s = workers * (compute_s + HANDING_OVER_S) / (1 - share)
    style, passes = draw.one_of(WITH_GUARD + EVERYWHERE), draw.one_of((1, 2))
    batches = _batches(draw, compute_s / (1 - share), passes)
    form = draw.one_of((("Pictures", DATASET), ("Stream", STREAM)))
    work = f"time.sleep({making_s / batch:.6f})"
    options = f"batch_size={batch}, num_workers={workers}, persistent_workers=True"
    parts = Parts(
        loader=f"DataLoader({form[0]}(), {options})  {HERE}",
        data=form[1].format(samples=batches * batch, work=work),
        compute_s=compute_s,
        epochs=passes,
    )
    planted = f"{workers} workers, {as_ms(making_s)} asleep a batch, waits {_percent(share)}"
    return Case("too_few_workers", planted, style, script(style, parts), "too_few_workers")


def saturated_cpu(draw: Draw) -> Case:
    """As many workers as cores, all of them at work, and training waits."""
    making_s, compute_s = draw.between(0.05, 0.12), draw.between(0.002, 0.006)
    style, batch = draw.one_of(WITH_GUARD), 4
    batches = _batches(draw, making_s / 2, 2, least=50)
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
    planted = f"one sample in {every * batch} takes {as_ms(late_s)}, waits {_percent(share)}"
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
    return Case("uneven_batches", planted, style, script(style, parts), "uneven_batches")


def idle_workers(draw: Draw) -> Case:
    """Fewer shards than workers: one worker has most of the data, or all."""
    compute_s, batch = draw.between(0.006, 0.012), draw.one_of((4, 8))
    workers, style = draw.one_of((2, 3)), draw.one_of(WITH_GUARD)
    making_s = compute_s * draw.between(1.5, 2.2)
    batches = _batches(draw, making_s, 2)
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
    return Case("idle_workers", planted, style, script(style, parts), "idle_workers")


def slow_collate(draw: Draw) -> Case:
    """Samples are put together in Python, element by element."""
    share, compute_s, batch = draw.between(0.15, 0.6), draw.between(0.008, 0.02), 8
    workers, style = draw.one_of((0, 1)), draw.one_of(WITH_GUARD + EVERYWHERE)
    way = draw.one_of(("CPU", "asleep"))
    step_s = compute_s + STEPPING_S + (HANDING_OVER_S if workers else 0)
    # A worker puts the next batch together while training is at work on this one.
    padding_s = step_s / (1 - share) if workers else step_s * share / (1 - share)
    batches = _batches(draw, step_s / (1 - share), 2)
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
    planted += _percent(share)
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
    batches = _batches(draw, compute_s + drawing_s, 2)
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
    planted = f"{as_ms(drawing_s)} drawing the indices of a batch, {_percent(share)} of a step"
    gain = 1 / (1 - share)
    return Case("slow_sampler", planted, style, script(style, parts), "slow_sampler", gain)


def slow_validation(draw: Draw) -> Case:
    """Evaluation waits for a loader that makes its batches itself."""
    share, compute_s, making_s = draw.between(0.25, 0.7), 0.008, draw.between(0.02, 0.05)
    style = draw.one_of(EVERYWHERE)
    steps = 40
    passed_s = steps * (compute_s + STEPPING_S)
    validated = max(round(passed_s * share / (1 - share) / (compute_s + making_s)), 8)
    data = f"""\
{IN_MEMORY}

class Scans(Dataset):
    def __len__(self):
        return {4 * validated}

    def __getitem__(self, index):
        time.sleep({making_s / 4:.6f})
        return torch.randn(64), torch.randn(1)
"""
    parts = Parts(
        loader=f"DataLoader(samples({steps * 8}), batch_size=8)",
        data=data,
        compute_s=compute_s,
        epochs=3,
        validation=f"DataLoader(Scans(), batch_size=4)  {HERE}",
    )
    planted = f"{validated} batches of {as_ms(making_s)} to load after {steps} steps"
    return Case("slow_validation", planted, style, script(style, parts), "slow_validation")


def much_validation(draw: Draw) -> Case:
    """Evaluation computes for long: its loader is not to blame."""
    share, compute_s, steps = draw.between(0.25, 0.6), 0.008, 40
    style = draw.one_of(EVERYWHERE)
    validated = max(round(steps * share / (1 - share)), 8)
    parts = Parts(
        loader=f"DataLoader(samples({steps * 8}), batch_size=8)",
        compute_s=compute_s,
        epochs=3,
        validation=f"DataLoader(samples({validated * 8}), batch_size=8)",
        evaluating=HERE,
    )
    planted = f"{validated} batches of evaluation after {steps} steps"
    gain = 1 + validated / steps
    return Case("much_validation", planted, style, script(style, parts), "slow_validation", gain)


def validation_by_hand(draw: Draw) -> Case:
    """Evaluation takes slices of what lies in memory, and comes often."""
    share, compute_s, every = draw.between(0.3, 0.6), 0.006, draw.one_of((10, 15))
    validated = max(round(every * share / (1 - share)), 3)
    definitions = f"""\
def evaluate(model):
    model.eval()
    with torch.no_grad():
        for part in torch.randn({8 * validated}, 64).split(8):
            model(part)
    model.train()
"""
    parts = Parts(
        loader=f"DataLoader(samples({90 * 8}), batch_size=8)",
        definitions=definitions,
        compute_s=compute_s,
        epochs=2,
        each_step=f"if step % {every} == {every - 1}:\n    evaluate(model)  {HERE}",
    )
    style = draw.one_of(EVERYWHERE)
    planted = f"{validated} slices evaluated after each {every} steps"
    gain = 1 + validated / every
    return Case("validation_by_hand", planted, style, script(style, parts), "slow_validation", gain)


def slow_checkpoints(draw: Draw) -> Case:
    share, compute_s = draw.between(0.06, 0.6), draw.between(0.008, 0.015)
    every, style = draw.one_of((10, 20, 5)), draw.one_of(EVERYWHERE)
    saving_s = every * (compute_s + STEPPING_S) * share / (1 - share)
    definitions = f"""\
class SlowDisk(io.BytesIO):
    def write(self, block):
        if not self.tell():
            time.sleep({saving_s:.6f})
        return super().write(block)


def save_checkpoint(model):
    torch.save(model.state_dict(), SlowDisk())  {HERE}
"""
    parts = Parts(
        loader=f"DataLoader(samples({90 * 8}), batch_size=8)",
        imports="import io\n",
        definitions=definitions,
        compute_s=compute_s,
        epochs=1,
        each_step=f"if step % {every} == {every - 1}:\n    save_checkpoint(model)",
    )
    planted = f"{as_ms(saving_s)} after {every} steps, {_percent(share)} of training"
    gain = 1 / (1 - share)
    return Case("slow_checkpoints", planted, style, script(style, parts), "slow_checkpoints", gain)


def python_in_loop(draw: Draw) -> Case:
    """Something in the loop waits, or computes in Python, after each step."""
    share, compute_s = draw.between(0.15, 0.75), draw.between(0.008, 0.02)
    logging_s = (compute_s + STEPPING_S) * share / (1 - share)
    style, way = draw.one_of(EVERYWHERE), draw.one_of(("burn", "sleep"))
    wait = f"    time.sleep({logging_s:.6f})  {HERE}"
    if way == "burn":
        wait = f"""\
    until = time.thread_time() + {logging_s:.6f}  {HERE}
    while time.thread_time() < until:  {HERE}
        total = sum(k * k for k in range(50))  {HERE}"""
    parts = Parts(
        loader=f"DataLoader(samples({8 * _steps(logging_s)}), batch_size=8)",
        definitions=f"def rank_predictions(loss):\n{wait}\n",
        compute_s=compute_s,
        epochs=1,
        each_step="rank_predictions(loss)",
    )
    planted = f"{as_ms(logging_s)} after each step ({way}), {_percent(share)}"
    gain = 1 / (1 - share)
    return Case("python_in_loop", planted, style, script(style, parts), "python_in_loop", gain)


def batches_by_hand(draw: Draw) -> Case:
    """No loader: the loop makes its batches itself."""
    share, compute_s = draw.between(0.15, 0.7), draw.between(0.008, 0.015)
    making_s = (compute_s + STEPPING_S) * share / (1 - share)
    style = draw.one_of(("plain loop", "function"))
    definitions = f"""\
def get_batch(step):
    time.sleep({making_s:.6f})  {HERE}
    return torch.randn(8, 64), torch.randn(8, 1)
"""
    parts = Parts(
        loader=None,
        definitions=definitions,
        compute_s=compute_s,
        batch="get_batch(step)",
        steps=_steps(making_s),
    )
    planted = f"{as_ms(making_s)} for each batch, {_percent(share)} of a step"
    gain = 1 / (1 - share)
    return Case("batches_by_hand", planted, style, script(style, parts), "python_in_loop", gain)


def python_in_model(draw: Draw) -> Case:
    """The model's forward goes through its samples one by one, with Python or small arrays."""
    share, compute_s = draw.between(0.2, 0.75), draw.between(0.008, 0.02)
    matching_s = (compute_s + STEPPING_S) * share / (1 - share)
    style, way = draw.one_of(EVERYWHERE), draw.one_of(("numbers", "arrays"))
    each = f"""\
        until = time.thread_time() + {matching_s / 8:.6f}  {HERE}
        while time.thread_time() < until:  {HERE}
            ranked = sorted(row)  {HERE}"""
    rows = "x.tolist()"
    if way == "arrays":
        rows = "x.detach().numpy()"
        each = each.replace("sorted(row)", "numpy.abs(row - row.mean()) + row")
    definitions = f"""\
class Matching(nn.Module):
    def rank(self, row):
{each}
        return float(ranked[0])  {HERE}

    def forward(self, x):
        ranks = [self.rank(row) for row in {rows}]  {HERE}
        return x + 0 * torch.tensor(ranks).unsqueeze(1)  {HERE}
"""
    parts = Parts(
        loader=f"DataLoader(samples({8 * _steps(matching_s)}), batch_size=8)",
        imports="import numpy\n",
        definitions=definitions,
        model="nn.Sequential(Matching(), build_model())",
        compute_s=compute_s,
        epochs=1,
    )
    planted = f"{as_ms(matching_s)} of {way} in the forward, {_percent(share)} of a step"
    gain = 1 / (1 - share)
    return Case("python_in_model", planted, style, script(style, parts), "python_in_model", gain)


def elements_in_model(draw: Draw) -> Case:
    """A mask is filled in the forward, an element at a time, by what each of them is."""
    columns, compute_s = draw.one_of((64, 32, 48)), draw.between(0.002, 0.006)
    definitions = f"""\
class Masked(nn.Module):
    def forward(self, x):
        mask = torch.zeros_like(x)
        for row in range(x.shape[0]):
            for column in range({columns}):  {HERE}
                mask[row, column] = 1.0 if x[row, column] > 0 else 0.5  {HERE}
        return x * mask
"""
    parts = Parts(
        loader=f"DataLoader(samples({16 * 100}), batch_size=16)",
        definitions=definitions,
        model="nn.Sequential(Masked(), build_model())",
        compute_s=compute_s,
        epochs=1,
    )
    planted, style = f"{16 * columns} elements in each forward", draw.one_of(EVERYWHERE)
    return Case("elements_in_model", planted, style, script(style, parts), "python_in_model")


def collections_called(draw: Draw) -> Case:
    """gc.collect() in each step, over many objects."""
    thousands, compute_s = draw.whole(100, 400), draw.between(0.008, 0.02)
    style = draw.one_of(("plain loop", "function", "class Trainer"))
    parts = Parts(
        loader=f"DataLoader(samples({70 * 8}), batch_size=8)",
        imports="import gc\n",
        definitions=f"annotations = [{{'box': [k]}} for k in range({thousands * 1000})]\n",
        compute_s=compute_s,
        epochs=1,
        each_step=f"gc.collect()  {HERE}",
    )
    planted = f"gc.collect() in each step, {thousands},000 objects with one inside"
    return Case("collections_called", planted, style, script(style, parts), "gc_pauses")


def collections_due(draw: Draw) -> Case:
    """So many objects are made and kept that Python looks through all of them again and again."""
    thousands, kept, compute_s = draw.whole(40, 80), draw.whole(8, 14), 0.004
    style = draw.one_of(("plain loop", "function", "class Trainer"))
    each = f"history.append([{{'step': [k]}} for k in range({kept * 1000})])"
    parts = Parts(
        loader=f"DataLoader(samples({70 * 8}), batch_size=8)",
        definitions=(
            f"annotations = [{{'box': [k]}} for k in range({thousands * 1000})]\nhistory = []\n"
        ),
        compute_s=compute_s,
        epochs=1,
        each_step=each,
    )
    planted = f"{2 * kept},000 objects kept in each step"
    case = Case("collections_due", planted, style, script(style, parts), "gc_pauses")
    return replace(case, no_line=True)


def slow_optimizer(draw: Draw) -> Case:
    """Many small parameters, updated one by one."""
    layers, name = draw.whole(15, 50), draw.one_of(("AdamW", "Adam", "Adagrad"))
    compute_s, style = draw.between(0.001, 0.004), draw.one_of(EVERYWHERE)
    definitions = f"""\
def build_deep_model():
    layers = [build_model()[0], Device({compute_s:.6f})]
    for _ in range({layers}):
        layers += [nn.Linear(32, 32), nn.LayerNorm(32), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(32, 1))
"""
    parts = Parts(
        loader=f"DataLoader(samples({150 * 16}), batch_size=16)",
        definitions=definitions,
        model="build_deep_model()",
        optimizer=f"torch.optim.{name}(model.parameters())  {HERE}",
        epochs=1,
    )
    planted = f"{name} on {4 * layers + 4} parameters, {as_ms(compute_s)} of a step asleep"
    return Case("slow_optimizer", planted, style, script(style, parts), "slow_optimizer")


def optimizer_by_hand(draw: Draw) -> Case:
    """An optimizer that the script's author wrote, with many small operations for each tensor."""
    layers, compute_s = draw.whole(15, 30), draw.between(0.001, 0.003)
    definitions = f"""\
class Centered(torch.optim.Optimizer):
    def __init__(self, parameters):
        super().__init__(parameters, {{"lr": 0.001}})

    @torch.no_grad()  {HERE}
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if not state:
                    state["mean"], state["square"] = torch.zeros_like(p), torch.zeros_like(p)
                grad = p.grad + 0.0001 * p
                state["mean"].mul_(0.9).add_(grad, alpha=0.1)
                state["square"].mul_(0.99).addcmul_(grad, grad, value=0.01)
                p.add_(-group["lr"] * state["mean"] / (state["square"].sqrt() + 1e-8))


def build_deep_model():
    layers = [build_model()[0], Device({compute_s:.6f})]
    for _ in range({layers}):
        layers += [nn.Linear(32, 32), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(32, 1))
"""
    parts = Parts(
        loader=f"DataLoader(samples({150 * 16}), batch_size=16)",
        definitions=definitions,
        model="build_deep_model()",
        optimizer="Centered(model.parameters())",
        epochs=1,
    )
    planted, style = f"{2 * layers + 4} parameters, ten operations each", draw.one_of(EVERYWHERE)
    return Case("optimizer_by_hand", planted, style, script(style, parts), "slow_optimizer")


def recompiling(draw: Draw) -> Case:
    """A number that Python holds changes, and with it what torch has compiled."""
    versions, style = draw.whole(3, 7), draw.one_of(EVERYWHERE)
    compile_s, compute_s = draw.between(0.5, 1.5), draw.between(0.005, 0.015)
    definitions = f"""\
def compile_slowly(graph, _):
    time.sleep({compile_s:.6f})
    return graph.forward


class Levels(nn.Module):
    def __init__(self):
        super().__init__()
        self.model = build_model()

    def forward(self, x, level):
        return self.model[2](self.model[0](x)) + 0.0 * level


class Annealed(nn.Module):
    def __init__(self):
        super().__init__()
        self.levels = Levels()
        self.compiled = torch.compile(self.levels, backend=compile_slowly, dynamic=False)
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        self.levels.model[1](x)
        return self.compiled(x, self.calls // 20 % {versions + 1})  {HERE}
"""
    parts = Parts(
        loader=f"DataLoader(samples({200 * 16}), batch_size=16)",
        definitions=definitions,
        model="Annealed()",
        compute_s=compute_s,
        epochs=1,
    )
    planted = f"{versions} versions more, {compile_s:.2g} s each"
    return Case("recompiling", planted, style, script(style, parts), "recompiling")


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
    return Case("worker_threads", planted, style, script(style, parts), "worker_threads")


def slow_rank(draw: Draw) -> Case:
    """One of two ranks waits longer for its batches, or does something alone."""
    share, compute_s = draw.between(0.15, 0.6), draw.between(0.01, 0.02)
    held_up_s, slow = compute_s * share / (1 - share), draw.one_of((1, 0))
    batches, batch = _batches(draw, compute_s + held_up_s, 2), 4
    if draw.one_of((True, False)):
        work = f"time.sleep({held_up_s / batch:.6f} if dist.get_rank() == {slow} else 0)"
        parts = Parts(
            loader=f"DataLoader(Pictures(), batch_size={batch})  {HERE}",
            data=DATASET.format(samples=batches * batch, work=work),
            compute_s=compute_s,
        )
        planted = f"rank {slow} loads {as_ms(held_up_s)} longer, {_percent(share)} of a step"
    else:
        definitions = f"""\
def report(step):
    until = time.thread_time() + {held_up_s:.6f}  {HERE}
    while time.thread_time() < until:  {HERE}
        sum(range(200))  {HERE}
"""
        parts = Parts(
            loader=f"DataLoader(samples({batches * batch}), batch_size={batch})",
            definitions=definitions,
            compute_s=compute_s,
            each_step=f"if dist.get_rank() == {slow}:\n    report(step)",
        )
        planted = f"rank {slow} reports for {as_ms(held_up_s)}, {_percent(share)} of a step"
    return Case("slow_rank", planted, "ranks", script("ranks", parts), "slow_rank")


FAULTS: dict[str, Callable[[Draw], Case]] = {
    one.__name__: one
    for one in (
        serial_loading,
        serial_decoding,
        too_few_workers,
        sample_by_sample,
        needless_workers,
        saturated_cpu,
        crowded_cores,
        storage_bound,
        slow_samples,
        uneven_batches,
        idle_workers,
        slow_collate,
        slow_receive,
        slow_sampler,
        worker_restart,
        reopened_file,
        slow_pass_starts,
        slow_first_batch,
        blocking_copies,
        exposed_syncs,
        launch_bound,
        python_on_device,
        slow_validation,
        much_validation,
        validation_by_hand,
        slow_checkpoints,
        python_in_loop,
        batches_by_hand,
        python_in_model,
        elements_in_model,
        module_hooks,
        collections_called,
        collections_due,
        growing_backward,
        unused_forward,
        repeated_forward,
        dense_embeddings,
        slow_optimizer,
        optimizer_by_hand,
        slow_rank,
        recompiling,
        anomaly_detection,
        double_precision,
        unused_gradients,
        discarded_gradients,
        too_many_threads,
        few_threads,
        worker_threads,
        competing_thread,
    )
}


def _batches(draw: Draw, step_s: float, passes: int, least: int = 60) -> int:
    """Returns the batches of a pass: two seconds of training, and enough to judge it."""
    return max(round(2.0 / step_s), least) // passes + draw.whole(1, 8)


def _steps(planted_s: float) -> int:
    """Returns so many steps that the fault's line is looked at some 20 times, 25 times a second."""
    return max(round(0.8 / planted_s), 90)


def _percent(share: float) -> str:
    return f"{share * 100:.0f} %"
