"""gc.collect() in each step, over many objects.

expect: gc_pauses
planted: gc.collect() in each step, {THOUSANDS},000 objects with one inside
"""

THOUSANDS, COMPUTE_S = whole(100, 400), between(0.008, 0.02)
STYLE, OBJECTS = one_of("plain loop", "function", "class Trainer"), 1000 * THOUSANDS

# -- imports
import gc

# -- definitions
annotations = [{"box": [k]} for k in range(OBJECTS)]

# -- each step
gc.collect()  # here

# -- built
loader = DataLoader(samples(560), batch_size=8)
compute_s = COMPUTE_S
epochs = 1
