"""Pictures are decoded in the main process; mended by eight workers."""

from pictures import Files
from timed import Pace, main
from torch import nn, optim
from torch.utils.data import DataLoader
from torchvision.models import resnet18


def train(is_fast: bool, pace: Pace) -> None:
    workers = 8 if is_fast else 0
    data = Files(32 * (150 if is_fast else 60))
    loader = DataLoader(data, batch_size=32, num_workers=workers, pin_memory=is_fast)  # here
    model = resnet18(num_classes=10).cuda()
    optimizer = optim.SGD(model.parameters(), lr=0.01)
    for x, y in pace.over(loader):
        x, y = x.cuda(non_blocking=is_fast), y.cuda(non_blocking=is_fast)
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main(train)
