"""A mask chooses samples in each step, which waits inside C++; mended, weights do: little gain."""

import torch
from timed import Pace, main
from torch import nn, optim


def train(is_fast: bool, pace: Pace) -> None:
    block = [x for _ in range(30) for x in (nn.Linear(512, 512), nn.LayerNorm(512), nn.GELU())]
    model = nn.Sequential(*block, nn.Linear(512, 10)).cuda()
    optimizer = optim.AdamW(model.parameters(), lr=1e-4)
    x, y = torch.randn(4096, 512).cuda(), torch.randint(0, 10, (4096,)).cuda()
    for _ in pace.over(range(400)):
        losses = nn.functional.cross_entropy(model(x), y, reduction="none")
        kept = losses > 0.1
        loss = (losses * kept).sum() / kept.sum() if is_fast else losses[kept].mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main(train)
