"""Healthy scripts, and those with something that looks like a fault: nothing is to be found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from planted.calls import averaged_once
from planted.computing import (
    adversary,
    reading,
    recommender,
    taught,
)
from planted.crowding import computing_beside, one_thread_each
from planted.draw import Draw
from planted.loading import bursts
from planted.on_device import cache_emptied_once, device_at_work
from planted.precision import double_on_purpose
from planted.script import (
    DATASET,
    DIGITS,
    EVERYWHERE,
    IN_MEMORY,
    SAMPLERS,
    WITH_GUARD,
    Case,
    Parts,
    as_ms,
    script,
    whole_batches,
)

# Keeps one core busy until it is ended.
NEIGHBOUR = "while True: sum(range(10_000))"


def _healthy(name: str, planted: str, style: str, parts: Parts) -> Case:
    return Case(name, planted, style, script(style, parts))


def data_in_memory(draw: Draw) -> Case:
    """No workers, as it should be: the data lies in memory (scikit-learn's digits)."""
    compute_s, batch = draw.between(0.008, 0.02), draw.one_of((16, 32))
    parts = Parts(
        loader=f"DataLoader(samples({80 * batch}), batch_size={batch}, shuffle=True)",
        data=DIGITS,
        compute_s=compute_s,
        epochs=1,
    )
    planted = f"digits in memory, {compute_s * 1e3:.0f} ms a step"
    return _healthy("data_in_memory", planted, draw.one_of(EVERYWHERE), parts)


def hidden_wait(draw: Draw) -> Case:
    """Batches take longer than a step, and enough workers make them."""
    compute_s, workers = draw.between(0.012, 0.02), draw.one_of((2, 3))
    making_s = workers * compute_s * draw.between(0.4, 0.7)
    parts = Parts(
        loader=(
            f"DataLoader(Pictures(), batch_size=4, num_workers={workers}, persistent_workers=True)"
        ),
        data=DATASET.format(samples=4 * 50, work=f"time.sleep({making_s / 4:.6f})"),
        compute_s=compute_s,
        epochs=2,
    )
    planted = f"{making_s * 1e3:.0f} ms asleep a batch in {workers} workers, hidden"
    return _healthy("hidden_wait", planted, draw.one_of(WITH_GUARD), parts)


def cold_first_epoch(draw: Draw) -> Case:
    """Samples come from a slow place once, and from a cache ever after."""
    compute_s, cold_s = 0.01, draw.between(0.008, 0.02)
    data = f"""\
class Cached(Dataset):
    def __init__(self):
        self.cache = {{}}

    def __len__(self):
        return 30 * 4

    def __getitem__(self, index):
        if index not in self.cache:
            time.sleep({cold_s / 4:.6f})
            self.cache[index] = torch.randn(64), torch.randn(1)
        return self.cache[index]
"""
    parts = Parts(loader="DataLoader(Cached(), batch_size=4)", data=data, epochs=6)
    parts = replace(parts, compute_s=compute_s)
    planted = f"{cold_s * 1e3:.0f} ms a batch in the first of 6 epochs alone"
    return _healthy("cold_first_epoch", planted, draw.one_of(EVERYWHERE), parts)


def first_batch_late(draw: Draw) -> Case:
    """Opening the data takes a moment, once."""
    opening_s = draw.between(0.2, 0.8)
    data = f"""\
class Archive(Dataset):
    opened = False

    def __len__(self):
        return 100 * 4

    def __getitem__(self, index):
        if not self.opened:
            time.sleep({opening_s:.6f})
            self.opened = True
        return torch.randn(64), torch.randn(1)
"""
    options = draw.one_of(("", ", num_workers=1, persistent_workers=True"))
    parts = Parts(loader=f"DataLoader(Archive(), batch_size=4{options})", data=data, epochs=2)
    planted = f"{opening_s:.1f} s until the first batch, once"
    return _healthy("first_batch_late", planted, draw.one_of(WITH_GUARD), parts)


def rare_validation(draw: Draw) -> Case:
    """The loader of evaluation is slow, and hardly ever used."""
    making_s = draw.between(0.01, 0.02)
    slow = DATASET.format(samples=8, work=f"time.sleep({making_s / 4:.6f})")
    parts = Parts(
        loader="DataLoader(samples(60 * 8), batch_size=8)",
        data=f"{IN_MEMORY}\n\n{slow}",
        epochs=4,
        validation="DataLoader(Pictures(), batch_size=1)",
        validate_every=2,
    )
    planted = "8 slow batches of evaluation after 120 steps"
    return _healthy("rare_validation", planted, draw.one_of(EVERYWHERE), parts)


def noisy_neighbour(draw: Draw) -> Case:
    """Another program keeps a core busy all the time."""
    compute_s = draw.between(0.01, 0.02)
    parts = Parts(loader="DataLoader(samples(90 * 8), batch_size=8)", compute_s=compute_s, epochs=1)
    case = _healthy("noisy_neighbour", "a busy program beside it", draw.one_of(EVERYWHERE), parts)
    return replace(case, beside=(NEIGHBOUR,))


def value_each_step(draw: Draw) -> Case:
    """.item() of a CPU tensor waits for nothing."""
    parts = Parts(
        loader="DataLoader(samples(100 * 8), batch_size=8, shuffle=True)",
        compute_s=draw.between(0.006, 0.015),
        epochs=1,
        definitions="losses = []\n",
        each_step="losses.append(loss.item())",
    )
    return _healthy("value_each_step", "loss.item() each step", draw.one_of(EVERYWHERE), parts)


def computing(draw: Draw) -> Case:
    """A model that computes on the CPU, in any style but accelerate, which wants batch sizes."""
    width = draw.one_of((512, 768, 1024))
    model = (
        f"nn.Sequential(nn.Linear(64, {width}), nn.ReLU(), nn.Linear({width}, {width}), nn.ReLU(), "
        f"nn.Linear({width}, 1))"
    )
    parts = Parts(
        loader=whole_batches(50, 512),
        data=SAMPLERS,
        model=model,
        optimizer="torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)",
        epochs=2,
        setup="",
    )
    style = draw.one_of(EVERYWHERE)
    return _healthy("computing", f"a perceptron {width} wide", style, parts)


def frozen_teacher(draw: Draw) -> Case:
    """Most of forward is that of a larger model, which nothing goes back through."""
    width, batch = draw.one_of((384, 512, 256)), draw.one_of((128, 256))
    parts = taught(width, batch, "with torch.no_grad():\n    y = TEACHER(x)")
    planted = f"a teacher of {width} numbers, asked without gradients"
    return _healthy("frozen_teacher", planted, draw.one_of(EVERYWHERE), parts)


def adversaries_apart(draw: Draw) -> Case:
    """Two models with an optimizer each; a pass of backward computes what it trains alone."""
    width, batch = draw.one_of((384, 512, 256)), draw.one_of((128, 256))
    planted = f"a maker of {width} numbers and its judge, detached"
    parts = adversary(width, batch, is_apart=True)
    return _healthy("adversaries_apart", planted, draw.one_of(EVERYWHERE), parts)


def small_vocabulary(draw: Draw) -> Case:
    """A table of embeddings of which a batch looks up a good part.

    Operators take 0.1 ms: of those twice as long a second thread makes more than nothing.
    """
    rows, batch = draw.whole(2_000, 4_000), 256
    parts = replace(recommender(rows, batch, 16, "SGD"), compute_s=0.0)
    planted = f"{rows:,} rows, {16 * batch:,} looked up"
    return _healthy("small_vocabulary", planted, draw.one_of(EVERYWHERE), parts)


def padded_to_the_longest(draw: Draw) -> Case:
    """Texts that are padded to the longest of their batch: shuffled, so that half is padding."""
    longest, batch = draw.one_of((96, 128, 160)), draw.one_of((8, 16))
    parts = reading(8, longest, batch, "max(len(text) for text in texts)")
    planted = f"8 to {longest} words, padded to the longest of {batch}"
    return _healthy("padded_to_the_longest", planted, draw.one_of(EVERYWHERE), parts)


def many_operators(draw: Draw) -> Case:
    """A forward that gives out hundreds of small operators from a loop in Python."""
    length, width = draw.whole(30, 80), draw.one_of((64, 96))
    definitions = f"""\
class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell, self.out = nn.LSTMCell(64, {width}), nn.Linear({width}, 1)

    def forward(self, x):
        state = torch.zeros(len(x), {width}), torch.zeros(len(x), {width})
        for _ in range({length}):
            state = self.cell(x, state)
        return self.out(state[0])
"""
    parts = Parts(
        loader=f"DataLoader(samples({16 * 240}), batch_size=16)",
        definitions=definitions,
        model="Recurrent()",
        epochs=1,
    )
    planted = f"an LSTM's cell {length} times in each forward"
    return _healthy("many_operators", planted, draw.one_of(EVERYWHERE), parts)


def deciding_layers(draw: Draw) -> Case:
    """Each layer looks at a number of what it is given: a few reads in a forward, not a loop."""
    layers = draw.whole(4, 12)
    definitions = f"""\
class Deciding(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(64, 64) for _ in range({layers}))

    def forward(self, x):
        for layer in self.layers:
            x = torch.tanh(layer(x)) if x.mean() > 0 else torch.relu(layer(x))
        return x
"""
    parts = Parts(
        loader=f"DataLoader(samples({16 * 150}), batch_size=16)",
        definitions=definitions,
        model="nn.Sequential(Deciding(), build_model())",
        compute_s=draw.between(0.002, 0.006),
        epochs=1,
    )
    planted = f"{layers} layers that ask for a number each"
    return _healthy("deciding_layers", planted, draw.one_of(EVERYWHERE), parts)


def quick_optimizer(draw: Draw) -> Case:
    """The script's own optimizer, that has next to nothing to do."""
    definitions = """\
class Signs(torch.optim.Optimizer):
    def __init__(self, parameters):
        super().__init__(parameters, {"lr": 0.001})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                p.sub_(p.grad.sign(), alpha=group["lr"])
"""
    compute_s = draw.between(0.008, 0.012)
    parts = Parts(
        loader=f"DataLoader(samples({16 * 120}), batch_size=16)",
        definitions=definitions,
        optimizer="Signs(model.parameters())",
        compute_s=compute_s,
        epochs=1,
    )
    planted = f"an optimizer of two operations beside {as_ms(compute_s)}"
    return _healthy("quick_optimizer", planted, draw.one_of(EVERYWHERE), parts)


def small_steps(draw: Draw) -> Case:
    """Steps of a millisecond, most of it torch's and Python's own."""
    width, batch = draw.one_of((32, 64, 128)), draw.one_of((16, 32))
    model = f"nn.Sequential(nn.Linear(64, {width}), nn.ReLU(), nn.Linear({width}, 1))"
    parts = Parts(loader=whole_batches(400, batch), data=SAMPLERS, model=model, epochs=3)
    planted = f"{width} wide, batches of {batch}"
    return _healthy("small_steps", planted, draw.one_of(EVERYWHERE), parts)


def accumulation(draw: Draw) -> Case:
    every = draw.one_of((2, 4))
    parts = Parts(
        loader="DataLoader(samples(160 * 8), batch_size=8)",
        compute_s=draw.between(0.006, 0.012),
        epochs=1,
        accumulate=every,
    )
    style = draw.one_of(("plain loop", "function", "class Trainer", "several files"))
    return _healthy("accumulation", f"a step each {every} batches", style, parts)


def progress_bar(draw: Draw) -> Case:
    """A line of progress, written again in each step."""
    parts = Parts(
        loader="DataLoader(samples(100 * 8), batch_size=8)",
        compute_s=draw.between(0.008, 0.015),
        epochs=1,
        each_step='print(f"\\rstep {step} loss {loss.item():.4f}", end="", flush=True)',
    )
    return _healthy("progress_bar", "a line written each step", draw.one_of(EVERYWHERE), parts)


def quick_checkpoints(draw: Draw) -> Case:
    """A checkpoint after each epoch, to memory, as small as the model."""
    parts = Parts(
        loader="DataLoader(samples(40 * 8), batch_size=8)",
        imports="import io\n",
        compute_s=draw.between(0.01, 0.02),
        epochs=3,
        each_epoch="torch.save(model.state_dict(), io.BytesIO())",
    )
    return _healthy("quick_checkpoints", "one each epoch", draw.one_of(EVERYWHERE), parts)


def compiled_model(draw: Draw) -> Case:
    """A model that torch compiles, slowly, and once."""
    compile_s = draw.between(0.3, 1.0)
    definitions = f"""\
def compile_slowly(graph, _):
    time.sleep({compile_s:.6f})
    return graph.forward
"""
    model = "nn.Sequential(nn.Linear(64, 256), nn.Tanh(), nn.Linear(256, 1))"
    parts = Parts(
        loader=f"DataLoader(samples({200 * 16}), batch_size=16, drop_last=True)",
        definitions=definitions,
        model=f"torch.compile({model}, backend=compile_slowly)",
        epochs=2,
    )
    planted = f"compiled once, in {compile_s:.2g} s"
    return _healthy("compiled_model", planted, draw.one_of(EVERYWHERE), parts)


def workers_to_spare(draw: Draw) -> Case:
    """Workers that live on, and do nearly nothing."""
    workers = draw.one_of((1, 2))
    options = f"batch_size=8, num_workers={workers}, persistent_workers=True"
    parts = Parts(
        loader=f"DataLoader(samples(50 * 8), {options})",
        compute_s=draw.between(0.012, 0.02),
        epochs=2,
    )
    planted = f"{workers} workers, data in memory"
    return _healthy("workers_to_spare", planted, draw.one_of(WITH_GUARD), parts)


def cores_to_spare(draw: Draw) -> Case:
    """A worker that computes all the time, on a core that nobody else wants."""
    compute_s = draw.between(0.016, 0.026)
    making_s = compute_s * draw.between(0.6, 0.8)
    planted = f"{as_ms(making_s)} of CPU a batch beside {as_ms(compute_s)}, one worker"
    parts = computing_beside(compute_s, making_s, "1")
    return _healthy("cores_to_spare", planted, draw.one_of(WITH_GUARD), parts)


def bridged_bursts(draw: Draw) -> Case:
    """Batches of uneven cost, enough of them ahead."""
    parts, planted = bursts(draw, ", prefetch_factor=16")
    return _healthy("bridged_bursts", f"{planted}; 16 ahead", draw.one_of(WITH_GUARD), parts)


def equal_ranks(draw: Draw) -> Case:
    """Two ranks that do the same, and a little of it alone."""
    compute_s = draw.between(0.01, 0.02)
    parts = Parts(
        loader="DataLoader(samples(320), batch_size=4, shuffle=True)",
        compute_s=compute_s,
        each_step='if dist.get_rank() == 0 and step % 20 == 0:\n    print("step", step)',
    )
    planted = f"two ranks, {compute_s * 1e3:.0f} ms a step"
    return _healthy("equal_ranks", planted, "ranks", parts)


CONTROLS: dict[str, Callable[[Draw], Case]] = {
    one.__name__: one
    for one in (
        data_in_memory,
        hidden_wait,
        cold_first_epoch,
        first_batch_late,
        rare_validation,
        noisy_neighbour,
        value_each_step,
        computing,
        frozen_teacher,
        adversaries_apart,
        small_vocabulary,
        padded_to_the_longest,
        double_on_purpose,
        many_operators,
        deciding_layers,
        quick_optimizer,
        small_steps,
        accumulation,
        progress_bar,
        quick_checkpoints,
        compiled_model,
        workers_to_spare,
        cores_to_spare,
        one_thread_each,
        equal_ranks,
        averaged_once,
        bridged_bursts,
        device_at_work,
        cache_emptied_once,
    )
}
