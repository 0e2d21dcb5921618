"""Most of forward is that of a larger model, which nothing goes back through.

planted: a teacher of {WIDTH} numbers, asked without gradients
"""

WIDTH, BATCH = one_of(384, 512, 256), one_of(128, 256)
STYLE, SAMPLES = one_of(*EVERYWHERE), 200 * BATCH

# -- data
from torch.utils.data import BatchSampler, RandomSampler


def samples(count):
    return TensorDataset(torch.randn(count, 64), torch.randn(count, 1))


# -- definitions
TEACHER = nn.Sequential(
    nn.Linear(64, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 1)
)

# -- each batch
with torch.no_grad():
    y = TEACHER(x)

# -- built
loader = DataLoader(
    samples(SAMPLES),
    sampler=BatchSampler(RandomSampler(range(SAMPLES)), BATCH, drop_last=False),
    batch_size=None,
)
model = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))
epochs = 2
