"""NumPy computes with as many threads as there are cores, in each worker.

expect: thread_count
planted: NumPy's threads in each of {WORKERS} workers
"""

WORKERS, BATCH = one_of(2, 3), one_of(4, 8)
STYLE, COMPUTE_S = one_of(*WITH_GUARD), between(0.01, 0.02)
SAMPLES = 120 * BATCH

# -- imports
import numpy

# -- data
BASIS = numpy.ones((512, 512), dtype=numpy.float32) / 512


class Pictures(Dataset):
    def __len__(self):
        return SAMPLES

    def __getitem__(self, index):
        (numpy.ones((512, 512), dtype=numpy.float32) @ BASIS).sum()
        return torch.randn(64), torch.randn(1)


# -- built
loader = DataLoader(  # here
    Pictures(), batch_size=BATCH, num_workers=WORKERS, persistent_workers=True
)
compute_s = COMPUTE_S
epochs = 2
