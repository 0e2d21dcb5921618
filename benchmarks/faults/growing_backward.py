"""A running mean of activations that is not detached: backward goes through earlier steps as well.

expect: growing_backward @ any line
planted: a state that is not detached, {STEPS} steps
"""

COMPUTE_S, STEPS = between(0.004, 0.01), whole(220, 320)
STYLE = one_of("plain loop", "function", "class Trainer", "several files")
SAMPLES = 8 * STEPS


# -- definitions
class Running(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale, self.mean = nn.Linear(64, 64), 0.0

    def forward(self, x):
        self.mean = 0.9 * self.mean + self.scale(x)
        return x + 0.001 * self.mean


# -- built
loader = DataLoader(samples(SAMPLES), batch_size=8)
model = nn.Sequential(Running(), build_model())
backward = loss.backward(retain_graph=True)  # here
compute_s = COMPUTE_S
epochs = 1
