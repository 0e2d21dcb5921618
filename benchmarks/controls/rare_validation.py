"""The loader of evaluation is slow, and hardly ever used.

planted: 8 slow batches of evaluation after 120 steps
"""

SAMPLE_S, STYLE = between(0.01, 0.02) / 4, one_of(*EVERYWHERE)


# -- data
def samples(count):
    return TensorDataset(torch.randn(count, 64), torch.randn(count, 1))


class Pictures(Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        time.sleep(SAMPLE_S)
        return torch.randn(64), torch.randn(1)


# -- built
loader = DataLoader(samples(60 * 8), batch_size=8)
validation = DataLoader(Pictures(), batch_size=1)
validate_every = 2
epochs = 4
