"""Each worker sets a number of torch's threads that was meant for one process alone.

All of it in workers: a process that has computed with several threads must not fork them.

expect: thread_count
planted: {TIMES} threads of torch for each core in each of {WORKERS} workers
"""

TIMES, WORKERS = whole(4, 8), one_of(2, 3)
STYLE, COMPUTE_S = one_of(*WITH_GUARD), between(0.01, 0.02)
SET_THREADS = one_of("torch.set_num_threads", "begin_with")

# -- imports
import os


# -- data
def begin_with(threads):
    torch.set_num_threads(threads)  # here


def start(number):
    SET_THREADS(TIMES * os.cpu_count())  # here


class Pictures(Dataset):
    def __len__(self):
        return 800

    def __getitem__(self, index):
        torch.ones(512, 512).addmm(torch.ones(512, 512), torch.ones(512, 512)).sum()
        return torch.randn(64), torch.randn(1)


# -- built
loader = DataLoader(
    Pictures(), batch_size=8, num_workers=WORKERS, persistent_workers=True, worker_init_fn=start
)
compute_s = COMPUTE_S
epochs = 2
