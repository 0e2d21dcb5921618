"""Several times as many threads of torch as cores.

expect: thread_count @ any line
planted: {TIMES} threads for each core
"""

TIMES, STYLE, WIDTH = whole(3, 12), one_of(*EVERYWHERE), one_of(256, 384)

# -- imports
import os

# -- data
from torch.utils.data import BatchSampler, RandomSampler


def samples(count):
    return TensorDataset(torch.randn(count, 64), torch.randn(count, 1))


# -- setup
torch.set_num_threads(TIMES * os.cpu_count())

# -- built
loader = DataLoader(
    samples(25600),
    sampler=BatchSampler(RandomSampler(range(25600)), 256, drop_last=False),
    batch_size=None,
)
model = nn.Sequential(nn.Linear(64, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 1))
epochs = 2
