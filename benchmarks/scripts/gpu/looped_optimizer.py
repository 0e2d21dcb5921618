"""An optimizer that was told to take 384 parameters one by one; mended, fused."""

import torch
from timed import Pace, main
from torch import nn, optim


def train(is_fast: bool, pace: Pace) -> None:
    layers = (
        nn.TransformerEncoderLayer(128, 4, 256, batch_first=True, dropout=0.0) for _ in range(24)
    )
    model = nn.Sequential(*layers).cuda()
    how = {"fused": True} if is_fast else {"foreach": False}
    optimizer = optim.AdamW(model.parameters(), lr=1e-4, **how)  # here
    x = torch.randn(64, 32, 128).cuda()
    for _ in pace.over(range(120)):
        loss = model(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main(train)
