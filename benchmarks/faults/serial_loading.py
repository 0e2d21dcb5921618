"""No workers: the training process prepares each batch itself, and sleeps over it (a disk, a server).

expect: serial_loading
planted: {as_ms(FETCH_S)} asleep making a batch, {percent(SHARE)} of a step
"""

SHARE, COMPUTE_S = between(0.08, 0.85), between(0.005, 0.02)
FETCH_S, BATCH = COMPUTE_S * SHARE / (1 - SHARE), one_of(8, 4, 16)
EPOCHS, STYLE = one_of(*PASSES), one_of(*WITH_GUARD, *EVERYWHERE)
SAMPLES = BATCH * pass_batches(COMPUTE_S + FETCH_S, EPOCHS)
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
loader = DataLoader(DATASET(), batch_size=BATCH)  # here
compute_s = COMPUTE_S
epochs = EPOCHS
