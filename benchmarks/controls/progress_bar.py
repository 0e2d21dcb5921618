"""A line of progress, written again in each step.

planted: a line written each step
"""

COMPUTE_S, STYLE = between(0.008, 0.015), one_of(*EVERYWHERE)

# -- each step
print(f"\rstep {step} loss {loss.item():.4f}", end="", flush=True)

# -- built
loader = DataLoader(samples(100 * 8), batch_size=8)
compute_s = COMPUTE_S
epochs = 1
