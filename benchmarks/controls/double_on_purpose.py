"""Double precision where it is meant: a Gaussian process, whose matrices a function takes apart.

planted: a Gaussian process of {BATCH} points in float64
"""

BATCH, WIDTH, STYLE = one_of(256, 384, 512), one_of(64, 96), one_of(*EVERYWHERE)
SAMPLES = 60 * BATCH


# -- data
from torch.utils.data import BatchSampler, RandomSampler


def samples(count):
    return TensorDataset(torch.randn(count, 64), torch.randn(count, 1))


# -- definitions
class Weigh(torch.autograd.Function):
    @staticmethod
    def forward(ctx, variance, values):
        factor = torch.linalg.cholesky(variance)
        weights = torch.cholesky_solve(values, factor)
        ctx.save_for_backward(factor, weights)
        return weights

    @staticmethod
    def backward(ctx, grad):
        factor, weights = ctx.saved_tensors
        back = torch.cholesky_solve(grad, factor)
        return -back @ weights.T, back


class Gaussian(nn.Module):
    def __init__(self):
        super().__init__()
        self.places = nn.Sequential(nn.Linear(64, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 4))
        self.values = nn.Linear(64, 1)

    def forward(self, x):
        near = torch.exp(-torch.cdist(self.places(x), self.places(x)).square())
        return Weigh.apply(near + 0.1 * torch.eye(len(x)), self.values(x))


# -- setup
torch.set_default_dtype(torch.float64)

# -- built
loader = DataLoader(
    samples(SAMPLES),
    sampler=BatchSampler(RandomSampler(range(SAMPLES)), BATCH, drop_last=False),
    batch_size=None,
)
model = Gaussian()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
epochs = 2
