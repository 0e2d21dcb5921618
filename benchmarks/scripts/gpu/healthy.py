"""A ResNet-50 as it should be trained: workers, pinned memory, bfloat16, channels last."""

import torch
from pictures import Tensors
from timed import Pace, main
from torch import nn, optim
from torch.utils.data import DataLoader
from torchvision.models import resnet50


def train(is_fast: bool, pace: Pace) -> None:
    torch.backends.cudnn.benchmark = True
    data = Tensors(128 * 120, torch.randint(0, 255, (64, 3, 224, 224), dtype=torch.uint8))
    loader = DataLoader(data, 128, shuffle=True, num_workers=8, pin_memory=True)
    model = resnet50(num_classes=10).cuda().to(memory_format=torch.channels_last)
    optimizer = optim.SGD(model.parameters(), lr=0.01, momentum=0.9, fused=True)
    total = torch.zeros((), device="cuda")
    for x, y in pace.over(loader):
        x, y = x.cuda(non_blocking=True), y.cuda(non_blocking=True)
        with torch.autocast("cuda", torch.bfloat16):
            predicted = model(x.to(memory_format=torch.channels_last).float().div_(255))
            loss = nn.functional.cross_entropy(predicted, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.detach()
    print(f"{total.item():.3f}")


if __name__ == "__main__":
    main(train)
