"""Large products in float32; mended by TF32, which changes the numbers."""

import torch
from timed import Pace, main
from torch import nn, optim


def train(is_fast: bool, pace: Pace) -> None:
    torch.set_float32_matmul_precision("high" if is_fast else "highest")
    layers = (nn.Linear(4096, 4096), nn.ReLU(), nn.Linear(4096, 4096), nn.ReLU())
    model = nn.Sequential(*layers, nn.Linear(4096, 10)).cuda()
    optimizer = optim.SGD(model.parameters(), lr=1e-3)
    x, y = torch.randn(4096, 4096).cuda(), torch.randint(0, 10, (4096,)).cuda()
    for _ in pace.over(range(150)):
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main(train)
