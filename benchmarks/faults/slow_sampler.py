"""Indices are drawn by code that takes its time, in the training process.

expect: slow_sampler
planted: {as_ms(DRAWING_S)} drawing the indices of a batch, {percent(SHARE)} of a step
gain: 1 / (1 - SHARE)
"""

SHARE, COMPUTE_S, BATCH = between(0.1, 0.7), between(0.005, 0.015), 4
DRAWING_S = COMPUTE_S * SHARE / (1 - SHARE)
STYLE, WORKERS = one_of(*WITH_GUARD), one_of(2, 1, 0)
SAMPLES = BATCH * pass_batches(COMPUTE_S + DRAWING_S, 2)
INDEX_S, IS_PERSISTENT = DRAWING_S / BATCH, WORKERS > 0


# -- data
def samples(count):
    return TensorDataset(torch.randn(count, 64), torch.randn(count, 1))


class HardNegatives(torch.utils.data.Sampler):
    def __len__(self):
        return SAMPLES

    def __iter__(self):
        for index in range(SAMPLES):
            time.sleep(INDEX_S)  # here
            yield index


# -- built
loader = DataLoader(  # here
    samples(SAMPLES),
    batch_size=BATCH,
    sampler=HardNegatives(),
    num_workers=WORKERS,
    persistent_workers=IS_PERSISTENT,
)
compute_s = COMPUTE_S
epochs = 2
