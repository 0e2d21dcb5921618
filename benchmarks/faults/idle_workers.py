"""Fewer shards than workers: one worker has most of the data, or all.

expect: too_few_workers
planted: one shard for {WORKERS} workers, {as_ms(FETCH_S)} a batch, {as_ms(COMPUTE_S)} a step
"""

COMPUTE_S, BATCH = between(0.006, 0.012), one_of(4, 8)
WORKERS, STYLE = one_of(2, 3), one_of(*WITH_GUARD)
FETCH_S = COMPUTE_S * between(1.5, 2.2)
SAMPLES = BATCH * pass_batches(FETCH_S, 2)
SAMPLE_S = FETCH_S / BATCH


# -- data
class Shards(IterableDataset):
    def __init__(self, shards):
        self.shards = shards

    def __iter__(self):
        info = torch.utils.data.get_worker_info()
        for shard in self.shards[info.id :: info.num_workers] if info else self.shards:
            for _ in range(shard):
                time.sleep(SAMPLE_S)
                yield torch.randn(64), torch.randn(1)


# -- built
loader = DataLoader(  # here
    Shards([SAMPLES]), batch_size=BATCH, num_workers=WORKERS, persistent_workers=True
)
compute_s = COMPUTE_S
epochs = 2
