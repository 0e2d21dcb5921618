"""Ranks that average gradients after the last batch of each update alone.

planted: {EVERY} batches an update, averaged once
"""

EVERY, WIDTH, STYLE = one_of(4, 2), one_of(4096, 8192), "ranks"
LAST = EVERY - 1

# -- imports
import contextlib

# -- forward and backward
own = contextlib.nullcontext() if step % EVERY == LAST else model.no_sync()
with own:
    loss = nn.functional.mse_loss(model(x), y)
    (loss / EVERY).backward()

# -- built
loader = DataLoader(samples(8 * 480), batch_size=8)
model = nn.Sequential(nn.Linear(64, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 1))
accumulate = EVERY
compute_s = 0.0
epochs = 2
