"""A small model that torch.compile makes CUDA graphs of."""

import torch
from timed import Pace, main
from torch import nn, optim


def train(is_fast: bool, pace: Pace) -> None:
    layers = (nn.Linear(256, 256), nn.GELU(), nn.Linear(256, 256), nn.GELU(), nn.Linear(256, 1))
    model = nn.Sequential(*layers).cuda()
    compiled = torch.compile(model, mode="reduce-overhead")
    optimizer = optim.SGD(model.parameters(), lr=0.01)
    losses = []
    for step in pace.over(range(2000)):
        x, y = torch.randn(64, 256, device="cuda"), torch.randn(64, 1, device="cuda")
        loss = nn.functional.mse_loss(compiled(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 500 == 0:
            losses.append(round(loss.item(), 5))
    print(losses)


if __name__ == "__main__":
    main(train)
