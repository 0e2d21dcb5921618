"""No workers, as it should be: the data lies in memory (scikit-learn's digits).

planted: digits in memory, {COMPUTE_S * 1e3:.0f} ms a step
"""

COMPUTE_S, BATCH = between(0.008, 0.02), one_of(16, 32)
STYLE, SAMPLES = one_of(*EVERYWHERE), 80 * BATCH

# -- data
from sklearn.datasets import load_digits


def samples(count):
    digits = load_digits()
    images = torch.tensor(digits.data, dtype=torch.float32).repeat(count // 1797 + 1, 1)[:count]
    labels = torch.tensor(digits.target, dtype=torch.float32).repeat(count // 1797 + 1)[:count]
    return TensorDataset(images / 16, labels.unsqueeze(1))


# -- built
loader = DataLoader(samples(SAMPLES), batch_size=BATCH, shuffle=True)
compute_s = COMPUTE_S
epochs = 1
