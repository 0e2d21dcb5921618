""".item() of a CPU tensor waits for nothing.

planted: loss.item() each step
"""

COMPUTE_S, STYLE = between(0.006, 0.015), one_of(*EVERYWHERE)

# -- definitions
losses = []

# -- each step
losses.append(loss.item())

# -- built
loader = DataLoader(samples(100 * 8), batch_size=8, shuffle=True)
compute_s = COMPUTE_S
epochs = 1
