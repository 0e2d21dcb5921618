"""Evaluation computes for long: its loader is not to blame.

expect: slow_validation
planted: {VALIDATED} batches of evaluation after 40 steps
gain: 1 + VALIDATED / 40
"""

SHARE, STYLE = between(0.25, 0.6), one_of(*EVERYWHERE)
VALIDATED = max(round(40 * SHARE / (1 - SHARE)), 8)
VALIDATION = VALIDATED * 8

# -- built
loader = DataLoader(samples(320), batch_size=8)
validation = DataLoader(samples(VALIDATION), batch_size=8)
evaluating = "# here"
compute_s = 0.008
epochs = 3
