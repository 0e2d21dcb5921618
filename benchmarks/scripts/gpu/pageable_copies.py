"""Large batches are copied from plain memory; mended, pinned ones without waiting."""

import torch
from pictures import Tensors
from timed import Pace, main
from torch import nn, optim
from torch.utils.data import DataLoader
from torchvision.models import resnet18


def train(is_fast: bool, pace: Pace) -> None:
    data = Tensors(256 * 100, torch.randn(64, 3, 224, 224))
    loader = DataLoader(data, 256, num_workers=12, pin_memory=is_fast)
    model = resnet18(num_classes=10).cuda().to(memory_format=torch.channels_last)
    optimizer = optim.SGD(model.parameters(), lr=0.01)
    for x, y in pace.over(loader):
        x, y = x.to("cuda", non_blocking=is_fast), y.to("cuda", non_blocking=is_fast)  # here
        with torch.autocast("cuda", torch.bfloat16):
            predicted = model(x.to(memory_format=torch.channels_last))
            loss = nn.functional.cross_entropy(predicted, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main(train)
