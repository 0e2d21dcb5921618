"""Evaluation takes slices of what lies in memory, and comes often.

expect: slow_validation
planted: {VALIDATED} slices evaluated after each {EVERY} steps
gain: 1 + VALIDATED / EVERY
"""

SHARE, EVERY = between(0.3, 0.6), one_of(10, 15)
VALIDATED = max(round(EVERY * SHARE / (1 - SHARE)), 3)
STYLE, ROWS, LAST = one_of(*EVERYWHERE), 8 * VALIDATED, EVERY - 1


# -- definitions
def evaluate(model):
    model.eval()
    with torch.no_grad():
        for part in torch.randn(ROWS, 64).split(8):
            model(part)
    model.train()


# -- each step
if step % EVERY == LAST:
    evaluate(model)  # here

# -- built
loader = DataLoader(samples(720), batch_size=8)
compute_s = 0.006
epochs = 2
