"""Gradients of a few batches are accumulated for each update.

planted: a step each {EVERY} batches
"""

EVERY, COMPUTE_S = one_of(2, 4), between(0.006, 0.012)
STYLE = one_of("plain loop", "function", "class Trainer", "several files")

# -- built
loader = DataLoader(samples(160 * 8), batch_size=8)
accumulate = EVERY
compute_s = COMPUTE_S
epochs = 1
