"""Workers that say what torch does there by itself: one thread each, and batches in time.

planted: one thread of torch in each of 2 workers, batches in time
"""

STYLE, COMPUTE_S = one_of(*WITH_GUARD), between(0.03, 0.05)

# -- imports
import os


# -- data
def begin_with(threads):
    torch.set_num_threads(threads)


def start(number):
    torch.set_num_threads(1)


class Pictures(Dataset):
    def __len__(self):
        return 400

    def __getitem__(self, index):
        torch.ones(512, 512).addmm(torch.ones(512, 512), torch.ones(512, 512)).sum()
        return torch.randn(64), torch.randn(1)


# -- built
loader = DataLoader(
    Pictures(), batch_size=4, num_workers=2, persistent_workers=True, worker_init_fn=start
)
compute_s = COMPUTE_S
epochs = 2
