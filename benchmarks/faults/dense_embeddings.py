"""A table of embeddings that is changed as a whole in each step, for the rows of a batch.

expect: dense_embeddings
planted: {ROWS:,} rows changed by {OPTIMIZER}, {2 * BATCH} looked up
"""

ROWS, BATCH = whole(80_000, 200_000), one_of(64, 256)
OPTIMIZER, STYLE = one_of("Adam", "SGD", "AdamW"), one_of(*EVERYWHERE)
SAMPLES = 120 * BATCH

# -- data
from torch.utils.data import BatchSampler, RandomSampler


def samples(count):
    return TensorDataset(torch.randint(0, ROWS, (count, 2)), torch.randn(count, 1))


# -- definitions
class Recommender(nn.Module):
    def __init__(self, rows):
        super().__init__()
        self.table = nn.Embedding(rows, 64)  # here
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
optimizer = torch.optim.OPTIMIZER(model.parameters(), lr=0.01)
epochs = 2
