"""Evaluation waits for a loader that prepares its batches itself.

expect: slow_validation
planted: {VALIDATED} batches of {as_ms(FETCH_S)} to load after 40 steps
"""

SHARE, COMPUTE_S, FETCH_S = between(0.25, 0.7), 0.008, between(0.02, 0.05)
STYLE, EPOCH_S = one_of(*EVERYWHERE), 40 * (COMPUTE_S + STEPPING_S)
VALIDATED = max(round(EPOCH_S * SHARE / (1 - SHARE) / (COMPUTE_S + FETCH_S)), 8)
SCANS, SCAN_S = 4 * VALIDATED, FETCH_S / 4


# -- data
def samples(count):
    return TensorDataset(torch.randn(count, 64), torch.randn(count, 1))


class Scans(Dataset):
    def __len__(self):
        return SCANS

    def __getitem__(self, index):
        time.sleep(SCAN_S)
        return torch.randn(64), torch.randn(1)


# -- built
loader = DataLoader(samples(320), batch_size=8)
validation = DataLoader(Scans(), batch_size=4)  # here
compute_s = COMPUTE_S
epochs = 3
