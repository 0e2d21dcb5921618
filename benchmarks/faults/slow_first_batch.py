"""The dataset is opened with the first sample, once.

expect: worker_restart
planted: {OPENING_S:.1f} s until the first batch, once
"""

OPENING_S, WORKERS = between(3, 6), one_of(1, 2)
STYLE = one_of(*WITH_GUARD)


# -- data
class Archive(Dataset):
    opened = False

    def __len__(self):
        return 640

    def __getitem__(self, index):
        if not self.opened:
            time.sleep(OPENING_S)
            self.opened = True
        return torch.randn(64), torch.randn(1)


# -- built
loader = DataLoader(Archive(), batch_size=8, num_workers=WORKERS, persistent_workers=True)  # here
compute_s = 0.012
epochs = 1
