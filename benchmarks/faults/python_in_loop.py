"""Something in the loop waits, or computes in Python, after each step.

expect: python_in_loop
planted: {as_ms(LOGGING_S)} after each step ({WAY}), {percent(SHARE)}
gain: 1 / (1 - SHARE)
"""

SHARE, COMPUTE_S = between(0.15, 0.75), between(0.008, 0.02)
LOGGING_S = (COMPUTE_S + STEPPING_S) * SHARE / (1 - SHARE)
STYLE, WAY = one_of(*EVERYWHERE), one_of("burn", "sleep")
SAMPLES = 8 * enough_steps(LOGGING_S)


# -- definitions if WAY == "sleep"
def rank_predictions(loss):
    time.sleep(LOGGING_S)  # here


# -- definitions if WAY == "burn"
def rank_predictions(loss):
    until = time.thread_time() + LOGGING_S  # here
    while time.thread_time() < until:  # here
        total = sum(k * k for k in range(50))  # here


# -- each step
rank_predictions(loss)

# -- built
loader = DataLoader(samples(SAMPLES), batch_size=8)
compute_s = COMPUTE_S
epochs = 1
