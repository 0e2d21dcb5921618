"""next(iter(loader)) in each step, in the training process, which sleeps over the batch.

expect: serial_loading
planted: {as_ms(FETCH_S)} making each batch of a new iterator, {percent(SHARE)} of a step
"""

SHARE, COMPUTE_S = between(0.12, 0.8), between(0.006, 0.015)
FETCH_S, BATCH = (COMPUTE_S + STEPPING_S) * SHARE / (1 - SHARE), one_of(8, 4)
STYLE, SHUFFLES = one_of("plain loop", "function"), one_of(True, False)
SAMPLES, SAMPLE_S, STEPS = 50 * BATCH, FETCH_S / BATCH, enough_steps(FETCH_S)


# -- definitions
class Pictures(Dataset):
    def __len__(self):
        return SAMPLES

    def __getitem__(self, index):
        time.sleep(SAMPLE_S)
        return torch.randn(64), torch.randn(1)


pictures = DataLoader(Pictures(), batch_size=BATCH, shuffle=SHUFFLES)  # here

# -- built
batch = next(iter(pictures))
steps = STEPS
compute_s = COMPUTE_S
