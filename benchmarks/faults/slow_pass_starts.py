"""A sampler that works out an order, or a stream that parses its index, for each epoch.

expect: worker_restart
planted: {EPOCHS} passes of {BATCHES} steps, {as_ms(STARTING_S)} ahead of each, by {WHAT}
"""

STARTING_S, COMPUTE_S = between(0.08, 0.4), between(0.006, 0.012)
EPOCHS, BATCHES, WORKERS = whole(5, 9), whole(15, 25), one_of(0, 2)
IS_STREAM, STYLE = one_of(False, True), one_of(*WITH_GUARD)
SAMPLES, WHAT = BATCHES * 8, "a stream" if IS_STREAM else f"a sampler, {WORKERS} workers"


# -- data if IS_STREAM
class Stream(IterableDataset):
    def __iter__(self):
        until = time.thread_time() + STARTING_S  # here
        while time.thread_time() < until:  # here
            sum(range(50))  # here
        for _ in range(SAMPLES):
            yield torch.randn(64), torch.randn(1)


# -- built if IS_STREAM
loader = DataLoader(Stream(), 8)


# -- data if not IS_STREAM
class ByLength(torch.utils.data.Sampler):
    def __len__(self):
        return SAMPLES

    def __iter__(self):
        until = time.thread_time() + STARTING_S  # here
        while time.thread_time() < until:  # here
            sum(range(50))  # here
        yield from range(SAMPLES)


def samples(count):
    return TensorDataset(torch.randn(count, 64), torch.randn(count, 1))


# -- built if not IS_STREAM
loader = DataLoader(samples(SAMPLES), 8, sampler=ByLength(), num_workers=WORKERS)

# -- built
compute_s = COMPUTE_S
epochs = EPOCHS
