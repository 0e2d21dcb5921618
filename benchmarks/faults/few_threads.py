"""One thread, left from another machine, for a model of large layers.

expect: thread_count @ any line
planted: one thread, layers of {WIDTH} numbers
"""

WIDTH, BATCH = one_of(1024, 768, 1280), one_of(256, 512)
HIDDEN = ", ".join([f"nn.Linear({WIDTH}, {WIDTH}), nn.ReLU()"] * whole(1, 3))
STYLE, SAMPLES = one_of(*EVERYWHERE), 50 * BATCH

# -- data
from torch.utils.data import BatchSampler, RandomSampler


def samples(count):
    return TensorDataset(torch.randn(count, 64), torch.randn(count, 1))


# -- built
loader = DataLoader(
    samples(SAMPLES),
    sampler=BatchSampler(RandomSampler(range(SAMPLES)), BATCH, drop_last=False),
    batch_size=None,
)
model = nn.Sequential(nn.Linear(64, WIDTH), nn.ReLU(), HIDDEN, nn.Linear(WIDTH, 1))
epochs = 2
