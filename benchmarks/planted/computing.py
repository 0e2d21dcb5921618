"""Faults of how torch is told to compute."""

from __future__ import annotations

from dataclasses import replace

from planted.draw import Draw
from planted.script import EVERYWHERE, HERE, SAMPLERS, Case, Parts, script, whole_batches


def anomaly_detection(draw: Draw) -> Case:
    """Left on from when a NaN was looked for."""
    layers, style = draw.whole(4, 20), draw.one_of(EVERYWHERE)
    definitions = f"""\
def build_deep_model():
    layers = [build_model()[0]]
    for _ in range({layers}):
        layers += [nn.Linear(32, 32), nn.Tanh()]
    return nn.Sequential(*layers, nn.Linear(32, 1))
"""
    parts = Parts(
        loader=f"DataLoader(samples({150 * 16}), batch_size=16)",
        definitions=definitions,
        model="build_deep_model()",
        epochs=1,
        setup="torch.set_num_threads(1)\ntorch.autograd.set_detect_anomaly(True)",
    )
    planted = f"on, with {layers} layers"
    case = Case("anomaly_detection", planted, style, script(style, parts), "anomaly_detection")
    return replace(case, no_line=True)


def too_many_threads(draw: Draw) -> Case:
    """Several times as many threads as cores."""
    times, style = draw.whole(3, 12), draw.one_of(EVERYWHERE)
    width = draw.one_of((256, 384))
    parts = Parts(
        loader=whole_batches(100, 256),
        data=SAMPLERS,
        imports="import os\n",
        model=f"nn.Sequential(nn.Linear(64, {width}), nn.Tanh(), nn.Linear({width}, 1))",
        epochs=2,
        setup=f"torch.set_num_threads({times} * os.cpu_count())",
    )
    planted = f"{times} threads for each core"
    case = Case("too_many_threads", planted, style, script(style, parts), "torch_threads")
    return replace(case, no_line=True)


def competing_thread(draw: Draw) -> Case:
    """A thread that writes what training hands it, and asks all the while whether there is more."""
    width, style = draw.one_of((256, 384, 512)), draw.one_of(EVERYWHERE)
    definitions = f"""\
import queue
import threading

RESULTS = queue.Queue()


def write_results():
    with open("results.txt", "w") as file:
        while True:  {HERE}
            if not RESULTS.empty():  {HERE}
                file.write(f"{{RESULTS.get()}}\\n")


threading.Thread(target=write_results, daemon=True).start()
"""
    parts = Parts(
        loader=whole_batches(700, 64),
        data=SAMPLERS,
        definitions=definitions,
        model=f"nn.Sequential(nn.Linear(64, {width}), nn.Tanh(), nn.Linear({width}, 1))",
        each_step="RESULTS.put(loss.item())",
        epochs=2,
    )
    planted = f"a thread that asks for results, layers of {width} numbers"
    return Case("competing_thread", planted, style, script(style, parts), "competing_thread")


def double_precision(draw: Draw) -> Case:
    """A model made double, and data to fit it."""
    width, batch = draw.one_of((512, 384, 768)), draw.one_of((128, 256))
    parts = Parts(
        loader=whole_batches(60, batch),
        data=SAMPLERS,
        model=f"nn.Sequential(nn.Linear(64, {width}), nn.Tanh(), nn.Linear({width}, {width}), "
        f"nn.Tanh(), nn.Linear({width}, 1))",
        epochs=2,
        setup="torch.set_default_dtype(torch.float64)",
    )
    style = draw.one_of(EVERYWHERE)
    planted = f"layers of {width} numbers, batches of {batch}"
    case = Case("double_precision", planted, style, script(style, parts), "double_precision")
    return replace(case, no_line=True)
