"""Opening the data takes a moment, once.

planted: {OPENING_S:.1f} s until the first batch, once
"""

OPENING_S, WORKERS, STYLE = between(0.2, 0.8), one_of(0, 1), one_of(*WITH_GUARD)


# -- data
class Archive(Dataset):
    opened = False

    def __len__(self):
        return 100 * 4

    def __getitem__(self, index):
        if not self.opened:
            time.sleep(OPENING_S)
            self.opened = True
        return torch.randn(64), torch.randn(1)


# -- built if WORKERS
loader = DataLoader(Archive(), batch_size=4, num_workers=1, persistent_workers=True)

# -- built if not WORKERS
loader = DataLoader(Archive(), batch_size=4)

# -- built
epochs = 2
