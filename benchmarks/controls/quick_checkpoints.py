"""A checkpoint after each epoch, to memory, as small as the model.

planted: one each epoch
"""

COMPUTE_S, STYLE = between(0.01, 0.02), one_of(*EVERYWHERE)

# -- imports
import io

# -- each epoch
torch.save(model.state_dict(), io.BytesIO())

# -- built
loader = DataLoader(samples(40 * 8), batch_size=8)
compute_s = COMPUTE_S
epochs = 3
