"""Another program keeps a core busy all the time.

planted: a busy program beside it
beside: while True: sum(range(10_000))
"""

COMPUTE_S, STYLE = between(0.01, 0.02), one_of(*EVERYWHERE)

# -- built
loader = DataLoader(samples(90 * 8), batch_size=8)
compute_s = COMPUTE_S
epochs = 1
