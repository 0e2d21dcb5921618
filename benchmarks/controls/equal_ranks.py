"""Two ranks that do the same, and a little of it alone.

planted: two ranks, {COMPUTE_S * 1e3:.0f} ms a step
"""

COMPUTE_S, STYLE = between(0.01, 0.02), "ranks"

# -- each step
if dist.get_rank() == 0 and step % 20 == 0:
    print("step", step)

# -- built
loader = DataLoader(samples(320), batch_size=4, shuffle=True)
compute_s = COMPUTE_S
