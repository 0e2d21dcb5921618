"""Reading from a disk, of which workers ask for more than it gives."""

from __future__ import annotations

from planted.draw import Draw
from planted.script import HERE, Case, Parts, script

# Past the page cache, as where data is larger than memory; into a block that is there already, for
# memory that is new takes the CPU as long.
DATA = f"""\
PATH, PIECE, PIECES = "pieces.bin", {{piece}} << 20, 24


class Stored(Dataset):
    block = mmap.mmap(-1, PIECE)

    def __init__(self):
        with open(PATH, "wb") as file:
            for _ in range(PIECES):
                file.write(os.urandom(PIECE))
            os.fsync(file.fileno())

    def __len__(self):
        return {{samples}}

    def __getitem__(self, index):
        file = os.open(PATH, os.O_RDONLY | os.O_DIRECT)
        os.preadv(file, [self.block], index % PIECES * PIECE)  {HERE}
        os.close(file)
        return torch.randn(64), torch.randn(1)
"""


def storage_bound(draw: Draw) -> Case:
    piece, workers = draw.whole(6, 12), draw.one_of((2, 3))
    compute_s, batch, batches = draw.between(0.002, 0.004), 4, 110
    style = draw.one_of(("plain loop", "function", "class Trainer", "hooks", "several files"))
    parts = Parts(
        loader=f"DataLoader(Stored(), batch_size={batch}, num_workers={workers})",
        data=DATA.format(piece=piece, samples=batches * batch),
        compute_s=compute_s,
        epochs=1,
        imports="import mmap\nimport os\n",
    )
    planted = f"{workers} workers, {batch * piece} MiB a batch past the page cache"
    return Case("storage_bound", planted, style, script(style, parts), "storage_bound")
