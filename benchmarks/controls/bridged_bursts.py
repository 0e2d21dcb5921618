"""Batches of uneven cost, enough of them ahead.

planted: {LONGS} batches of {as_ms(LONG_S)} in each {PERIOD}, others {as_ms(SHORT_S)}; 16 ahead
"""

COMPUTE_S, BATCH = between(0.009, 0.014), 4
LONGS, SLOWER = whole(8, 14), between(1.6, 2.0)
PERIOD = 2 * LONGS + whole(6, 10)
LONG_S, SHORT_S = 2 * SLOWER * COMPUTE_S, 0.3 * COMPUTE_S
STYLE = one_of(*WITH_GUARD)
SAMPLES = 4 * PERIOD * BATCH


# -- data
class Pictures(Dataset):
    def __len__(self):
        return SAMPLES

    def __getitem__(self, index):
        time.sleep((LONG_S if index // BATCH % PERIOD < LONGS else SHORT_S) / BATCH)
        return torch.randn(64), torch.randn(1)


# -- built
loader = DataLoader(
    Pictures(), batch_size=BATCH, num_workers=2, persistent_workers=True, prefetch_factor=16
)
compute_s = COMPUTE_S
epochs = 2
