"""The script's own optimizer, that has next to nothing to do.

planted: an optimizer of two operations beside {as_ms(COMPUTE_S)}
"""

COMPUTE_S, STYLE = between(0.008, 0.012), one_of(*EVERYWHERE)


# -- definitions
class Signs(torch.optim.Optimizer):
    def __init__(self, parameters):
        super().__init__(parameters, {"lr": 0.001})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                p.sub_(p.grad.sign(), alpha=group["lr"])


# -- built
loader = DataLoader(samples(1920), batch_size=16)
optimizer = Signs(model.parameters())
compute_s = COMPUTE_S
epochs = 1
