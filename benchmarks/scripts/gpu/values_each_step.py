"""Twelve statistics are read one by one in each step; mended, in every fiftieth."""

import torch
from timed import Pace, main
from torch import nn, optim


def train(is_fast: bool, pace: Pace) -> None:
    block = [
        layer for _ in range(12) for layer in (nn.Linear(1024, 1024), nn.LayerNorm(1024), nn.GELU())
    ]
    model = nn.Sequential(*block, nn.Linear(1024, 10)).cuda()
    optimizer = optim.AdamW(model.parameters(), lr=1e-4)
    x, y = torch.randn(2048, 1024).cuda(), torch.randint(0, 10, (2048,)).cuda()
    history = []
    for step in pace.over(range(400)):
        predicted = model(x)
        loss = nn.functional.cross_entropy(predicted, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 50 == 0 or not is_fast:
            metrics = {}
            for number in range(10):
                metrics[number] = (predicted.argmax(1) == number).float().mean().item()  # here
            metrics["right"] = (predicted.argmax(1) == y).float().mean().item()
            metrics["loss"] = loss.item()
            history.append(metrics)


if __name__ == "__main__":
    main(train)
