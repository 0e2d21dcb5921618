"""Rows of tensors in memory, taken one after the other and put together again.

expect: sample_by_sample
planted: batches of {BATCH} rows in memory
"""

BATCH, DATASET = one_of(64, 32, 128, 256), one_of("samples", "Rows")
WIDTH, STYLE = one_of(64, 32, 128), one_of(*EVERYWHERE)
SAMPLES = 300 * BATCH


# -- data if DATASET == "samples"
def samples(count):
    return TensorDataset(torch.randn(count, 64), torch.randn(count, 1))


# -- data if DATASET == "Rows"
class Rows(Dataset):
    def __init__(self, count):
        self.x, self.y = torch.randn(count, 64), torch.randn(count, 1)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        return self.x[index], self.y[index]


# -- built
loader = DataLoader(DATASET(SAMPLES), batch_size=BATCH, shuffle=True)  # here
model = nn.Sequential(nn.Linear(64, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 1))
epochs = 3
