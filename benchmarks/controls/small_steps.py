"""Steps of a millisecond, most of it torch's and Python's own.

planted: {WIDTH} wide, batches of {BATCH}
"""

WIDTH, BATCH, STYLE = one_of(32, 64, 128), one_of(16, 32), one_of(*EVERYWHERE)
SAMPLES = 400 * BATCH

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
model = nn.Sequential(nn.Linear(64, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 1))
epochs = 3
