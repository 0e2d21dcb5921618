"""The model's forward goes through its samples one by one, with Python or small arrays.

expect: python_in_model
planted: {as_ms(MATCHING_S)} of {WAY} in the forward, {percent(SHARE)} of a step
gain: 1 / (1 - SHARE)
"""

SHARE, COMPUTE_S = between(0.2, 0.75), between(0.008, 0.02)
MATCHING_S = (COMPUTE_S + STEPPING_S) * SHARE / (1 - SHARE)
STYLE, WAY = one_of(*EVERYWHERE), one_of("numbers", "arrays")
ROWS = "x.tolist()" if WAY == "numbers" else "x.detach().numpy()"
RANKED = "sorted(row)" if WAY == "numbers" else "numpy.abs(row - row.mean()) + row"
SAMPLES, ROW_S = 8 * enough_steps(MATCHING_S), MATCHING_S / 8

# -- imports
import numpy


# -- definitions
class Matching(nn.Module):
    def rank(self, row):
        until = time.thread_time() + ROW_S  # here
        while time.thread_time() < until:  # here
            ranked = RANKED  # here
        return float(ranked[0])  # here

    def forward(self, x):
        ranks = [self.rank(row) for row in ROWS]  # here
        return x + 0 * torch.tensor(ranks).unsqueeze(1)  # here


# -- built
loader = DataLoader(samples(SAMPLES), batch_size=8)
model = nn.Sequential(Matching(), build_model())
compute_s = COMPUTE_S
epochs = 1
