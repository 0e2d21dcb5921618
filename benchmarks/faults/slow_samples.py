"""One sample in some hundred takes so long that no batch is left in the queue.

expect: slow_samples
planted: one sample in {EVERY * BATCH} takes {as_ms(LATE_S)}, waits {percent(SHARE)}
"""

SHARE, COMPUTE_S, BATCH = between(0.12, 0.6), 0.006, 4
WORKERS, EVERY = one_of(2, 1, 3), one_of(20, 30)
STEP_S = COMPUTE_S + HANDING_OVER_S
# What is buffered hides the beginning.
LATE_S = EVERY * STEP_S * SHARE / (1 - SHARE) + 2 * WORKERS * STEP_S
STYLE = one_of(*WITH_GUARD, *EVERYWHERE)
SAMPLES = BATCH * EVERY * whole(3, 4)
PERIOD = EVERY * BATCH


# -- data
class Pictures(Dataset):
    def __len__(self):
        return SAMPLES

    def __getitem__(self, index):
        time.sleep(LATE_S if index % PERIOD == 37 else 0.0005)
        return torch.randn(64), torch.randn(1)


# -- built
loader = DataLoader(Pictures(), batch_size=BATCH, num_workers=WORKERS)  # here
compute_s = COMPUTE_S
epochs = 1
