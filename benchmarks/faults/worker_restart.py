"""Workers that open something first are started again in each of many short epochs.

expect: worker_restart
planted: {EPOCHS} passes of {BATCHES} steps, {as_ms(OPENING_S)} to open the data in each
"""

OPENING_S, COMPUTE_S = between(0.08, 0.5), between(0.006, 0.012)
EPOCHS, BATCHES, WORKERS = whole(5, 9), whole(12, 20), one_of(2, 1)
STYLE, SAMPLES = one_of(*WITH_GUARD), BATCHES * 8


# -- data
def samples(count):
    return TensorDataset(torch.randn(count, 64), torch.randn(count, 1))


def open_archive(worker):
    time.sleep(OPENING_S)


# -- built
loader = DataLoader(  # here
    samples(SAMPLES), batch_size=8, num_workers=WORKERS, worker_init_fn=open_archive
)
compute_s = COMPUTE_S
epochs = EPOCHS
