"""Persistent workers that do nearly nothing.

planted: {WORKERS} workers, data in memory
"""

WORKERS, COMPUTE_S, STYLE = one_of(1, 2), between(0.012, 0.02), one_of(*WITH_GUARD)

# -- built
loader = DataLoader(samples(50 * 8), batch_size=8, num_workers=WORKERS, persistent_workers=True)
compute_s = COMPUTE_S
epochs = 2
