"""A mask is filled in the forward, an element at a time, by what each of them is.

expect: python_in_model
planted: {16 * COLUMNS} elements in each forward
"""

COLUMNS, COMPUTE_S = one_of(64, 32, 48), between(0.002, 0.006)
STYLE = one_of(*EVERYWHERE)


# -- definitions
class Masked(nn.Module):
    def forward(self, x):
        mask = torch.zeros_like(x)
        for row in range(x.shape[0]):
            for column in range(COLUMNS):  # here
                mask[row, column] = 1.0 if x[row, column] > 0 else 0.5  # here
        return x * mask


# -- built
loader = DataLoader(samples(1600), batch_size=16)
model = nn.Sequential(Masked(), build_model())
compute_s = COMPUTE_S
epochs = 1
