"""Workers that sleep over their batches, fewer than it takes to keep up with training.

expect: too_few_workers
planted: {WORKERS} workers, {as_ms(FETCH_S)} asleep a batch, waits {percent(SHARE)}
"""

SHARE, COMPUTE_S = between(0.1, 0.75), between(0.006, 0.015)
WORKERS, BATCH = one_of(1, 2), one_of(8, 4)
FETCH_S = WORKERS * (COMPUTE_S + HANDING_OVER_S) / (1 - SHARE)
STYLE, EPOCHS = one_of(*WITH_GUARD, *EVERYWHERE), one_of(1, 2)
SAMPLES = BATCH * pass_batches(COMPUTE_S / (1 - SHARE), EPOCHS)
DATASET = one_of("Pictures", "Stream")
SAMPLE_S = FETCH_S / BATCH


# -- data if DATASET == "Pictures"
class Pictures(Dataset):
    def __len__(self):
        return SAMPLES

    def __getitem__(self, index):
        time.sleep(SAMPLE_S)
        return torch.randn(64), torch.randn(1)


# -- data if DATASET == "Stream"
class Stream(IterableDataset):
    def __iter__(self):
        info = torch.utils.data.get_worker_info()
        first, apart = (0, 1) if info is None else (info.id, info.num_workers)
        for _ in range(first, SAMPLES, apart):
            time.sleep(SAMPLE_S)
            yield torch.randn(64), torch.randn(1)


# -- built
loader = DataLoader(  # here
    DATASET(), batch_size=BATCH, num_workers=WORKERS, persistent_workers=True
)
compute_s = COMPUTE_S
epochs = EPOCHS
