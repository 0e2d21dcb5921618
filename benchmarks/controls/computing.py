"""A model that computes on the CPU, in any style but accelerate, which wants batch sizes.

planted: a perceptron {WIDTH} wide
"""

WIDTH, STYLE = one_of(512, 768, 1024), one_of(*EVERYWHERE)


# -- data
from torch.utils.data import BatchSampler, RandomSampler


def samples(count):
    return TensorDataset(torch.randn(count, 64), torch.randn(count, 1))


# -- built
loader = DataLoader(
    samples(25600),
    sampler=BatchSampler(RandomSampler(range(25600)), 512, drop_last=False),
    batch_size=None,
)
model = nn.Sequential(
    nn.Linear(64, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 1)
)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
setup = ""
epochs = 2
