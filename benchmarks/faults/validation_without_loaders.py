"""No loader at all: training and evaluation make their batches, evaluation ahead of all.

expect: slow_validation
planted: {VALIDATED} batches evaluated ahead of each {EVERY} steps
"""

SHARE, EVERY = between(0.3, 0.6), one_of(10, 15)
VALIDATED = max(round(EVERY * SHARE / (1 - SHARE)), 3)
STYLE, STEPS = one_of("plain loop", "function"), 12 * EVERY


# -- definitions
def get_batch():
    return torch.randn(8, 64), torch.randn(8, 1)


def estimate_loss(model):
    model.eval()
    with torch.no_grad():
        losses = torch.zeros(VALIDATED)
        for number in range(VALIDATED):
            x, y = get_batch()
            losses[number] = nn.functional.mse_loss(model(x), y).item()
    model.train()
    return losses.mean()


# -- each batch
if step % EVERY == 0:
    estimate_loss(model)  # here

# -- built
batch = get_batch()
steps = STEPS
compute_s = 0.006
