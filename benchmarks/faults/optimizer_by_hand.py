"""An optimizer that the script's author wrote, with many small operations for each tensor.

expect: slow_optimizer
planted: {2 * LAYERS + 4} parameters, ten operations each
"""

LAYERS, COMPUTE_S = whole(15, 30), between(0.001, 0.003)
STYLE = one_of(*EVERYWHERE)


# -- definitions
class Centered(torch.optim.Optimizer):
    def __init__(self, parameters):
        super().__init__(parameters, {"lr": 0.001})

    @torch.no_grad()  # here
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
    layers = [build_model()[0], Device(COMPUTE_S)]
    for _ in range(LAYERS):
        layers += [nn.Linear(32, 32), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(32, 1))


# -- built
loader = DataLoader(samples(2400), batch_size=16)
model = build_deep_model()
optimizer = Centered(model.parameters())
epochs = 1
