"""As many workers as cores, all of them at work, and training waits.

expect: saturated_cpu
planted: {as_ms(FETCH_S)} of CPU a batch on every core, {as_ms(COMPUTE_S)} to train on it
"""

FETCH_S, COMPUTE_S = between(0.05, 0.12), between(0.002, 0.006)
STYLE, BATCH = one_of(*WITH_GUARD), 4
SAMPLES = BATCH * pass_batches(FETCH_S / 2, 2, least=50)
SAMPLE_S = FETCH_S / BATCH

# -- imports
import os


# -- data
class Pictures(Dataset):
    def __len__(self):
        return SAMPLES

    def decode(self, index):
        until = time.thread_time() + SAMPLE_S  # here
        while time.thread_time() < until:  # here
            total = sum(range(200))  # here
        return torch.full((64,), float(total))  # here

    def __getitem__(self, index):
        return self.decode(index), torch.randn(1)


# -- built
loader = DataLoader(
    Pictures(), batch_size=BATCH, num_workers=os.cpu_count(), persistent_workers=True
)
compute_s = COMPUTE_S
epochs = 2
