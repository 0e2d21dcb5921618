"""Workers for batches that take less time to prepare than to hand over.

expect: worker_restart
planted: {WORKERS} workers for batches of {BATCH} random rows
"""

BATCH, WORKERS = one_of(8, 4, 16), one_of(2, 1)
WIDTH = one_of(64, 32, 128)
STYLE = one_of("function", "class Trainer", "hooks", "several files")
SAMPLES = 300 * BATCH


# -- data
class Stream(IterableDataset):
    def __iter__(self):
        info = torch.utils.data.get_worker_info()
        first, apart = (0, 1) if info is None else (info.id, info.num_workers)
        for _ in range(first, SAMPLES, apart):
            pass
            yield torch.randn(64), torch.randn(1)


# -- built
loader = DataLoader(  # here
    Stream(), batch_size=BATCH, num_workers=WORKERS, persistent_workers=True
)
model = nn.Sequential(nn.Linear(64, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 1))
epochs = 3
