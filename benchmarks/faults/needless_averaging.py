"""Ranks average gradients after each of several batches, and use them once.

expect: needless_averaging
planted: {EVERY} batches an update, averaged each, {WIDTH} wide
"""

WIDTH, EVERY, STYLE = one_of(4096, 8192), one_of(4, 2, 8), "ranks"

# -- built
loader = DataLoader(samples(8 * 480), batch_size=8)
model = nn.Sequential(nn.Linear(64, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 1))
loss = nn.functional.mse_loss(model(x), y)  # here
accumulate = EVERY
compute_s = 0.0
epochs = 2
