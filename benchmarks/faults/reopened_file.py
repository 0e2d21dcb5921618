"""Each worker opens its data with its first sample; the loader may be built again in each epoch.

expect: worker_restart
planted: {EPOCHS} passes of {BATCHES} steps, {as_ms(OPENING_S)} to open the data in each{BY}
"""

OPENING_S, COMPUTE_S = between(0.08, 0.5), between(0.006, 0.012)
EPOCHS, BATCHES, WORKERS = whole(5, 9), whole(12, 20), one_of(2, 1)
STYLE, IS_REBUILT = one_of(*WITH_GUARD), one_of(False, True)
SAMPLES, BY = BATCHES * 8, ", by a loader of its own" if IS_REBUILT else ""


# -- data
class Archive(Dataset):
    is_open = False

    def __len__(self):
        return SAMPLES

    def __getitem__(self, index):
        if not self.is_open:
            time.sleep(OPENING_S)
            self.is_open = True
        return torch.randn(64), torch.randn(1)


class Passes:
    def __iter__(self):
        return iter(DataLoader(Archive(), batch_size=8, num_workers=WORKERS))  # here


# -- built if IS_REBUILT
loader = Passes()

# -- built if not IS_REBUILT
loader = DataLoader(Archive(), batch_size=8, num_workers=WORKERS)  # here

# -- built
compute_s = COMPUTE_S
epochs = EPOCHS
