"""A teacher, or a backbone of which the head is trained, that is not frozen.

expect: unused_gradients
planted: a {WHO} of {WIDTH} numbers, not frozen
"""

WIDTH, BATCH = one_of(384, 512, 256), one_of(128, 256)
STYLE, WHO = one_of(*EVERYWHERE), one_of("teacher", "backbone")
SAMPLES = 200 * BATCH

# -- data
from torch.utils.data import BatchSampler, RandomSampler


def samples(count):
    return TensorDataset(torch.randn(count, 64), torch.randn(count, 1))


# -- definitions if WHO == "teacher"
TEACHER = nn.Sequential(
    nn.Linear(64, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 1)
)

# -- each batch if WHO == "teacher"
y = TEACHER(x)  # here

# -- built if WHO == "teacher"
model = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))


# -- definitions if WHO == "backbone"
class Probed(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(
            nn.Linear(64, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH), nn.Tanh()
        )
        self.head = nn.Linear(WIDTH, 1)

    def forward(self, x):
        return self.head(self.backbone(x))


# -- built if WHO == "backbone"
model = Probed()
optimizer = torch.optim.SGD(model.head.parameters(), lr=0.01)
loss = nn.functional.mse_loss(model(x), y)  # here

# -- built
loader = DataLoader(
    samples(SAMPLES),
    sampler=BatchSampler(RandomSampler(range(SAMPLES)), BATCH, drop_last=False),
    batch_size=None,
)
epochs = 2
