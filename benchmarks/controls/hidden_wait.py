"""Batches take longer than a step, and enough workers prepare them.

planted: {FETCH_S * 1e3:.0f} ms asleep a batch in {WORKERS} workers, hidden
"""

COMPUTE_S, WORKERS = between(0.012, 0.02), one_of(2, 3)
FETCH_S, STYLE = WORKERS * COMPUTE_S * between(0.4, 0.7), one_of(*WITH_GUARD)
SAMPLES, SAMPLE_S = 200, FETCH_S / 4


# -- data
class Pictures(Dataset):
    def __len__(self):
        return SAMPLES

    def __getitem__(self, index):
        time.sleep(SAMPLE_S)
        return torch.randn(64), torch.randn(1)


# -- built
loader = DataLoader(Pictures(), batch_size=4, num_workers=WORKERS, persistent_workers=True)
compute_s = COMPUTE_S
epochs = 2
