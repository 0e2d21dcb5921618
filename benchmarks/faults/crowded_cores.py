"""A worker for each core, whose batches are there in time, and torch wants all cores, too.

expect: saturated_cpu
planted: {as_ms(FETCH_S)} of CPU a batch beside {as_ms(COMPUTE_S)} on all cores
"""

COMPUTE_S, TIMES = between(0.016, 0.026), between(0.7, 1.1)
FETCH_S, BATCH, STYLE = COMPUTE_S * TIMES, 4, one_of(*WITH_GUARD)
SAMPLES, SAMPLE_S = 60 * BATCH, FETCH_S / BATCH

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


# -- setup
torch.set_num_threads(os.cpu_count())

# -- built
loader = DataLoader(
    Pictures(), batch_size=BATCH, num_workers=os.cpu_count(), persistent_workers=True
)
model = Computing()
epochs = 4
