"""A number that Python holds changes, and with it what torch has compiled.

expect: recompiling
planted: {VERSIONS} versions more, {COMPILE_S:.2g} s each
"""

VERSIONS, STYLE = whole(3, 7), one_of(*EVERYWHERE)
COMPILE_S, COMPUTE_S = between(0.5, 1.5), between(0.005, 0.015)
LEVELS = VERSIONS + 1


# -- definitions
def compile_slowly(graph, _):
    time.sleep(COMPILE_S)
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
        return self.compiled(x, self.calls // 20 % LEVELS)  # here


# -- built
loader = DataLoader(samples(3200), batch_size=16)
model = Annealed()
compute_s = COMPUTE_S
epochs = 1
