"""The device is waited for, and its memory given back, in each step; mended, neither."""

import torch
from timed import Pace, main
from torch import nn, optim
from torchvision.models import resnet18


def train(is_fast: bool, pace: Pace) -> None:
    model = resnet18(num_classes=10).cuda()
    optimizer = optim.SGD(model.parameters(), lr=0.01)
    x, y = torch.randn(64, 3, 128, 128).cuda(), torch.randint(0, 10, (64,)).cuda()
    for _ in pace.over(range(200)):
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if not is_fast:
            torch.cuda.synchronize()
            torch.cuda.empty_cache()  # here


if __name__ == "__main__":
    main(train)
