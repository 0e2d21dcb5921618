"""Each layer reads a number of what it is given: a few reads in a forward, not a loop.

planted: {LAYERS} layers that ask for a number each
"""

LAYERS, COMPUTE_S, STYLE = whole(4, 12), between(0.002, 0.006), one_of(*EVERYWHERE)


# -- definitions
class Deciding(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(LAYERS))

    def forward(self, x):
        for layer in self.layers:
            x = torch.tanh(layer(x)) if x.mean() > 0 else torch.relu(layer(x))
        return x


# -- built
loader = DataLoader(samples(2400), batch_size=16)
model = nn.Sequential(Deciding(), build_model())
compute_s = COMPUTE_S
epochs = 1
