"""A worker that computes all the time, on a core that nobody else wants.

planted: {as_ms(FETCH_S)} of CPU a batch beside {as_ms(COMPUTE_S)}, one worker
"""

COMPUTE_S, TIMES = between(0.016, 0.026), between(0.6, 0.8)
FETCH_S, BATCH, STYLE = COMPUTE_S * TIMES, 4, one_of(*WITH_GUARD)
SAMPLES, SAMPLE_S = 60 * BATCH, FETCH_S / BATCH

# -- imports
import os


# -- data
class Pictures(Dataset):
    def __len__(self):
        return SAMPLES

    def decode(self, index):
        until = time.thread_time() + SAMPLE_S
        while time.thread_time() < until:
            total = sum(range(200))
        return torch.full((64,), float(total))

    def __getitem__(self, index):
        return self.decode(index), torch.randn(1)


# -- definitions
class Computing(nn.Module):
    def __init__(self):
        super().__init__()
        self.out, self.field = nn.Linear(64, 1), torch.randn(512, 512) / 512**0.5
        for _ in range(2):
            began = time.perf_counter()
            for _ in range(20):
                self.field @ self.field
            each = (time.perf_counter() - began) / 20
        self.times = max(round(COMPUTE_S / each), 1)

    def forward(self, x):
        moving = self.field + x.mean()
        for _ in range(self.times):
            moving = moving @ self.field
        return self.out(x)


# -- built
loader = DataLoader(Pictures(), batch_size=BATCH, num_workers=1, persistent_workers=True)
model = Computing()
epochs = 4
