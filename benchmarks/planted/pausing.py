"""What training stops for between its steps, and after some of them."""

from __future__ import annotations

from dataclasses import replace

from planted.draw import Draw
from planted.script import EVERYWHERE, HERE, IN_MEMORY, Case, Parts, as_ms, script
from planted.sizes import STEPPING_S, enough_steps, percent


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


def validation_without_loaders(draw: Draw) -> Case:
    """No loader at all: training and evaluation make their batches, evaluation ahead of all."""
    share, compute_s, every = draw.between(0.3, 0.6), 0.006, draw.one_of((10, 15))
    validated = max(round(every * share / (1 - share)), 3)
    definitions = f"""\
def get_batch():
    return torch.randn(8, 64), torch.randn(8, 1)


def estimate_loss(model):
    model.eval()
    with torch.no_grad():
        losses = torch.zeros({validated})
        for number in range({validated}):
            x, y = get_batch()
            losses[number] = nn.functional.mse_loss(model(x), y).item()
    model.train()
    return losses.mean()
"""
    parts = Parts(
        loader=None,
        definitions=definitions,
        compute_s=compute_s,
        each_batch=f"if step % {every} == 0:\n    estimate_loss(model)  {HERE}",
        batch="get_batch()",
        steps=12 * every,
    )
    style = draw.one_of(("plain loop", "function"))
    planted = f"{validated} batches evaluated ahead of each {every} steps"
    case = Case("validation_without_loaders", planted, style, script(style, parts))
    return replace(case, finding="slow_validation")


def slow_environment(draw: Draw) -> Case:
    """A policy plays, in evaluation mode, and its environment takes longer than it does."""
    compute_s, slower = draw.between(0.002, 0.004), draw.between(1.5, 4.0)
    moves, updates = draw.one_of((16, 24)), draw.one_of((20, 30))
    environment_s = slower * compute_s
    definitions = f"""\
class Environment:
    def step(self, action):
        time.sleep({environment_s:.6f})  {HERE}
        return torch.randn(1, 64)


def play(model, environment):
    model.eval()
    with torch.no_grad():
        observation = torch.randn(1, 64)
        for _ in range({moves}):
            observation = environment.step(model(observation))
    model.train()


def get_batch():
    return torch.randn(8, 64), torch.randn(8, 1)
"""
    parts = Parts(
        loader=None,
        definitions=definitions,
        compute_s=compute_s,
        each_batch=f"if step % {updates} == 0:\n    play(model, Environment())",
        batch="get_batch()",
        steps=10 * updates,
    )
    played_s, learned_s = moves * (compute_s + environment_s), updates * (compute_s + STEPPING_S)
    share = moves * environment_s / (played_s + learned_s)
    style = draw.one_of(("plain loop", "function"))
    planted = f"{moves} moves of {as_ms(environment_s)} ahead of {updates} updates"
    files = script(style, parts)
    return Case("slow_environment", planted, style, files, "python_in_loop", 1 / (1 - share))


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
    planted = f"{as_ms(saving_s)} after {every} steps, {percent(share)} of training"
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
        loader=f"DataLoader(samples({8 * enough_steps(logging_s)}), batch_size=8)",
        definitions=f"def rank_predictions(loss):\n{wait}\n",
        compute_s=compute_s,
        epochs=1,
        each_step="rank_predictions(loss)",
    )
    planted = f"{as_ms(logging_s)} after each step ({way}), {percent(share)}"
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
        steps=enough_steps(making_s),
    )
    planted = f"{as_ms(making_s)} for each batch, {percent(share)} of a step"
    gain = 1 / (1 - share)
    return Case("batches_by_hand", planted, style, script(style, parts), "python_in_loop", gain)


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
