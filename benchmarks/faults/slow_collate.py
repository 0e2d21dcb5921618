"""Samples are put together in Python, element by element.

expect: slow_collate
planted: {as_ms(PADDING_S)} ({WAY}) to put a batch together, {WORKERS} workers, waits {percent(SHARE)}
gain: None if WORKERS else 1 / (1 - SHARE)
"""

SHARE, COMPUTE_S, BATCH = between(0.15, 0.6), between(0.008, 0.02), 8
WORKERS, STYLE = one_of(0, 1), one_of(*WITH_GUARD, *EVERYWHERE)
WAY = one_of("CPU", "asleep")
STEP_S = COMPUTE_S + STEPPING_S + (HANDING_OVER_S if WORKERS else 0)
# A worker puts the next batch together while training is at work on this one. What its batch takes
# to be handed over is a bound, so there is no gain by construction: the step may be shorter.
PADDING_S = STEP_S / (1 - SHARE) if WORKERS else STEP_S * SHARE / (1 - SHARE)
SAMPLES = BATCH * pass_batches(STEP_S / (1 - SHARE), 2)


# -- data
def samples(count):
    return TensorDataset(torch.randn(count, 64), torch.randn(count, 1))


# -- data if WAY == "CPU"
def pad_samples(samples):  # here
    until = time.thread_time() + PADDING_S  # here
    while time.thread_time() < until:  # here
        width = max(len(x) for x, _ in samples)  # here
    return torch.stack([x for x, _ in samples]), torch.stack([y for _, y in samples])  # here


# -- data if WAY == "asleep"
def pad_samples(samples):  # here
    time.sleep(PADDING_S)  # here
    return torch.stack([x for x, _ in samples]), torch.stack([y for _, y in samples])  # here


# -- built
loader = DataLoader(samples(SAMPLES), batch_size=BATCH, num_workers=WORKERS, collate_fn=pad_samples)
compute_s = COMPUTE_S
epochs = 2
