"""A forward that launches hundreds of small operators from a loop in Python.

planted: an LSTM's cell {LENGTH} times in each forward
"""

LENGTH, WIDTH, STYLE = whole(30, 80), one_of(64, 96), one_of(*EVERYWHERE)


# -- definitions
class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell, self.out = nn.LSTMCell(64, WIDTH), nn.Linear(WIDTH, 1)

    def forward(self, x):
        state = torch.zeros(len(x), WIDTH), torch.zeros(len(x), WIDTH)
        for _ in range(LENGTH):
            state = self.cell(x, state)
        return self.out(state[0])


# -- built
loader = DataLoader(samples(3840), batch_size=16)
model = Recurrent()
epochs = 1
