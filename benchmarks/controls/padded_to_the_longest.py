"""Texts that are padded to the longest of their batch: shuffled, so that half is padding.

planted: 8 to {LONGEST} words, padded to the longest of {BATCH}
"""

LONGEST, BATCH = one_of(96, 128, 160), one_of(8, 16)
STYLE = one_of(*EVERYWHERE)
SAMPLES = 60 * BATCH


# -- data
class Texts(Dataset):
    def __init__(self, count):
        self.lengths = torch.randint(8, LONGEST + 1, (count,)).tolist()

    def __len__(self):
        return len(self.lengths)

    def __getitem__(self, index):
        return torch.randint(1, 500, (self.lengths[index],)), torch.randn(1)


def put_together(samples):
    texts, values = zip(*samples)
    width = max(len(text) for text in texts)
    x = torch.zeros(len(texts), width, dtype=torch.long)
    for row, text in zip(x, texts):
        row[: len(text)] = text
    return x, torch.stack(values)


# -- definitions
class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(500, 64, padding_idx=0)
        layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True, dropout=0.0)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.last = nn.Linear(64, 1)

    def forward(self, x):
        return self.last(self.layers(self.words(x)).mean(dim=1))


# -- setup
torch.manual_seed(0)

# -- built
loader = DataLoader(Texts(SAMPLES), batch_size=BATCH, shuffle=True, collate_fn=put_together)
model = Reader()
epochs = 2
