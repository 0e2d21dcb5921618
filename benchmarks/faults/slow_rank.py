"""One of two ranks waits longer for its batches, or does something alone.

expect: slow_rank
planted: rank {SLOW} {WHAT} {as_ms(HELD_UP_S)}{LONGER}, {percent(SHARE)} of a step
"""

SHARE, COMPUTE_S = between(0.15, 0.6), between(0.01, 0.02)
HELD_UP_S, SLOW = COMPUTE_S * SHARE / (1 - SHARE), one_of(1, 0)
SAMPLES, STYLE = 4 * pass_batches(COMPUTE_S + HELD_UP_S, 2), "ranks"
LOADS = one_of(True, False)
WHAT, LONGER = ("loads", " longer") if LOADS else ("reports for", "")
SAMPLE_S = HELD_UP_S / 4


# -- data if LOADS
class Pictures(Dataset):
    def __len__(self):
        return SAMPLES

    def __getitem__(self, index):
        time.sleep(SAMPLE_S if dist.get_rank() == SLOW else 0)
        return torch.randn(64), torch.randn(1)


# -- built if LOADS
loader = DataLoader(Pictures(), batch_size=4)  # here


# -- definitions if not LOADS
def report(step):
    until = time.thread_time() + HELD_UP_S  # here
    while time.thread_time() < until:  # here
        sum(range(200))  # here


# -- each step if not LOADS
if dist.get_rank() == SLOW:
    report(step)

# -- built if not LOADS
loader = DataLoader(samples(SAMPLES), batch_size=4)

# -- built
compute_s = COMPUTE_S
