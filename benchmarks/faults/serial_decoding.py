"""No workers, and each batch takes CPU in the training process, with other cores free.

expect: serial_loading
planted: {as_ms(FETCH_S)} of CPU making a batch, {percent(SHARE)} of a step
"""

SHARE, COMPUTE_S = between(0.15, 0.6), between(0.015, 0.03)
FETCH_S, BATCH = COMPUTE_S * SHARE / (1 - SHARE), one_of(8, 4)
STYLE = one_of(*WITH_GUARD)
SAMPLES = BATCH * pass_batches(COMPUTE_S + FETCH_S, 2)
SAMPLE_S = FETCH_S / BATCH


# -- data
def burn(seconds):
    # Where workers may as well lose, this line is the place.
    until = time.thread_time() + seconds
    while time.thread_time() < until:  # here
        pass  # here


class Pictures(Dataset):
    def __len__(self):
        return SAMPLES

    def __getitem__(self, index):
        burn(SAMPLE_S)  # here
        return torch.randn(64), torch.randn(1)


# -- built
loader = DataLoader(Pictures(), batch_size=BATCH, shuffle=True)  # here
compute_s = COMPUTE_S
epochs = 2
