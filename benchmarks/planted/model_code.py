"""Python in the model, updates one by one, and code that is compiled again and again."""

from __future__ import annotations

from planted.draw import Draw
from planted.script import EVERYWHERE, HERE, Case, Parts, as_ms, script
from planted.sizes import STEPPING_S, enough_steps, percent


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
        loader=f"DataLoader(samples({8 * enough_steps(matching_s)}), batch_size=8)",
        imports="import numpy\n",
        definitions=definitions,
        model="nn.Sequential(Matching(), build_model())",
        compute_s=compute_s,
        epochs=1,
    )
    planted = f"{as_ms(matching_s)} of {way} in the forward, {percent(share)} of a step"
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
