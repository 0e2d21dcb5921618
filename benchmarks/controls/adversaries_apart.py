"""Two models with an optimizer each; the backward of each computes what it trains alone.

planted: a maker of {WIDTH} numbers and its judge, detached
"""

WIDTH, BATCH = one_of(384, 512, 256), one_of(128, 256)
STYLE, SAMPLES = one_of(*EVERYWHERE), 150 * BATCH

# -- data
from torch.utils.data import BatchSampler, RandomSampler


def samples(count):
    return TensorDataset(torch.randn(count, 64), torch.randn(count, 1))


# -- definitions
MAKER = nn.Sequential(
    nn.Linear(64, WIDTH),
    nn.Tanh(),
    nn.Linear(WIDTH, WIDTH),
    nn.Tanh(),
    nn.Linear(WIDTH, 64),
)
MAKER_OPTIMIZER = torch.optim.SGD(MAKER.parameters(), lr=1e-3)


def train_maker(judge):
    MAKER_OPTIMIZER.zero_grad()
    (1 - judge(MAKER(torch.randn(BATCH, 64)))).square().mean().backward(
        inputs=list(MAKER.parameters())
    )
    MAKER_OPTIMIZER.step()


# -- each batch
x = MAKER(x).detach()

# -- each step
train_maker(model)

# -- built
loader = DataLoader(
    samples(SAMPLES),
    sampler=BatchSampler(RandomSampler(range(SAMPLES)), BATCH, drop_last=False),
    batch_size=None,
)
model = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))
epochs = 2
