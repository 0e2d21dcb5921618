"""One of two ranks computes longer, as one with longer sequences does.

expect: slow_rank @ any line
planted: rank {SLOW} computes {as_ms(LONG_S - SHORT_S)} longer, {percent(SHARE)} of a step
"""

SHARE, SHORT_S = between(0.25, 0.6), between(0.006, 0.012)
LONG_S, SLOW, STYLE = SHORT_S / (1 - SHARE), one_of(1, 0), "ranks"
SAMPLES = 4 * pass_batches(LONG_S, 2)


# -- definitions
class Uneven(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(64, 1)

    def forward(self, x):
        time.sleep(LONG_S if dist.get_rank() == SLOW else SHORT_S)
        return self.layer(x)


# -- built
loader = DataLoader(samples(SAMPLES), batch_size=4)
model = Uneven()
