"""Workers ask a disk for more than it gives.

Past the page cache, as where data is larger than memory; into a block that is there already, for
memory that is new takes the CPU as long.

expect: storage_bound
planted: {WORKERS} workers, {BATCH * PIECE_MIB} MiB a batch past the page cache
"""

PIECE_MIB, WORKERS, COMPUTE_S = whole(6, 12), one_of(2, 3), between(0.002, 0.004)
BATCH, SAMPLES = 4, 4 * 110
STYLE = one_of("plain loop", "function", "class Trainer", "hooks", "several files")

# -- imports
import mmap
import os

# -- data
PATH, PIECE, PIECES = "pieces.bin", PIECE_MIB << 20, 24


class Stored(Dataset):
    block = mmap.mmap(-1, PIECE)

    def __init__(self):
        with open(PATH, "wb") as file:
            for _ in range(PIECES):
                file.write(os.urandom(PIECE))
            os.fsync(file.fileno())

    def __len__(self):
        return SAMPLES

    def __getitem__(self, index):
        file = os.open(PATH, os.O_RDONLY | os.O_DIRECT)
        os.preadv(file, [self.block], index % PIECES * PIECE)  # here
        os.close(file)
        return torch.randn(64), torch.randn(1)


# -- built
loader = DataLoader(Stored(), batch_size=BATCH, num_workers=WORKERS)
compute_s = COMPUTE_S
epochs = 1
