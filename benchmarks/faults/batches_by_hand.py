"""No loader: the loop makes its batches itself.

expect: python_in_loop
planted: {as_ms(FETCH_S)} for each batch, {percent(SHARE)} of a step
gain: 1 / (1 - SHARE)
"""

SHARE, COMPUTE_S = between(0.15, 0.7), between(0.008, 0.015)
FETCH_S = (COMPUTE_S + STEPPING_S) * SHARE / (1 - SHARE)
STYLE, STEPS = one_of("plain loop", "function"), enough_steps(FETCH_S)


# -- definitions
def get_batch(step):
    time.sleep(FETCH_S)  # here
    return torch.randn(8, 64), torch.randn(8, 1)


# -- built
batch = get_batch(step)
steps = STEPS
compute_s = COMPUTE_S
