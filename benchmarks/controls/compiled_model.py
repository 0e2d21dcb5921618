"""A model that torch compiles, slowly, and once.

planted: compiled once, in {COMPILE_S:.2g} s
"""

COMPILE_S, STYLE = between(0.3, 1.0), one_of(*EVERYWHERE)


# -- definitions
def compile_slowly(graph, _):
    time.sleep(COMPILE_S)
    return graph.forward


# -- built
loader = DataLoader(samples(3200), batch_size=16, drop_last=True)
model = torch.compile(
    nn.Sequential(nn.Linear(64, 256), nn.Tanh(), nn.Linear(256, 1)), backend=compile_slowly
)
epochs = 2
