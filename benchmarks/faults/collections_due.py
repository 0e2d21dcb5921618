"""Each step keeps so many objects that Python collects garbage over and over.

expect: gc_pauses @ any line
planted: {2 * KEPT},000 objects kept in each step
"""

THOUSANDS, KEPT = whole(40, 80), whole(8, 14)
STYLE = one_of("plain loop", "function", "class Trainer")
OBJECTS, NEW_OBJECTS = 1000 * THOUSANDS, 1000 * KEPT

# -- definitions
annotations = [{"box": [k]} for k in range(OBJECTS)]
history = []

# -- each step
history.append([{"step": [k]} for k in range(NEW_OBJECTS)])

# -- built
loader = DataLoader(samples(560), batch_size=8)
compute_s = 0.004
epochs = 1
