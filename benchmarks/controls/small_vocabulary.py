"""A table of embeddings of which a batch looks up a good part.

Operators take 0.1 ms: of those twice as long a second thread makes more than nothing.

planted: {ROWS:,} rows, {16 * BATCH:,} looked up
"""

ROWS, BATCH, STYLE = whole(2_000, 4_000), 256, one_of(*EVERYWHERE)
SAMPLES = 120 * BATCH

# -- data
from torch.utils.data import BatchSampler, RandomSampler


def samples(count):
    return TensorDataset(torch.randint(0, ROWS, (count, 16)), torch.randn(count, 1))


# -- definitions
class Recommender(nn.Module):
    def __init__(self, rows):
        super().__init__()
        self.table = nn.Embedding(rows, 64)
        self.out = nn.Linear(64, 1)

    def forward(self, asked):
        return self.out(self.table(asked).mean(1))


# -- built
loader = DataLoader(
    samples(SAMPLES),
    sampler=BatchSampler(RandomSampler(range(SAMPLES)), BATCH, drop_last=False),
    batch_size=None,
)
model = Recommender(ROWS)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
compute_s = 0.0
epochs = 2
