"""Checkpoints go to a slow disk every few steps.

expect: slow_checkpoints
planted: {as_ms(SAVING_S)} after {EVERY} steps, {percent(SHARE)} of training
gain: 1 / (1 - SHARE)
"""

SHARE, COMPUTE_S = between(0.06, 0.6), between(0.008, 0.015)
EVERY, STYLE = one_of(10, 20, 5), one_of(*EVERYWHERE)
SAVING_S = EVERY * (COMPUTE_S + STEPPING_S) * SHARE / (1 - SHARE)
LAST = EVERY - 1

# -- imports
import io


# -- definitions
class SlowDisk(io.BytesIO):
    def write(self, block):
        if not self.tell():
            time.sleep(SAVING_S)
        return super().write(block)


def save_checkpoint(model):
    torch.save(model.state_dict(), SlowDisk())  # here


# -- each step
if step % EVERY == LAST:
    save_checkpoint(model)

# -- built
loader = DataLoader(samples(720), batch_size=8)
compute_s = COMPUTE_S
epochs = 1
