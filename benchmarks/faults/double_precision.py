"""A model made double, and data to fit it.

expect: double_precision
planted: layers of {WIDTH} numbers, batches of {BATCH}
"""

WIDTH, BATCH = one_of(512, 384, 768), one_of(128, 256)
STYLE, SAMPLES = one_of(*EVERYWHERE), 60 * BATCH

# -- data
from torch.utils.data import BatchSampler, RandomSampler


def samples(count):
    return TensorDataset(torch.randn(count, 64), torch.randn(count, 1))


# -- setup
torch.set_default_dtype(torch.float64)  # here

# -- built
loader = DataLoader(
    samples(SAMPLES),
    sampler=BatchSampler(RandomSampler(range(SAMPLES)), BATCH, drop_last=False),
    batch_size=None,
)
model = nn.Sequential(
    nn.Linear(64, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 1)
)
epochs = 2
