"""float16 with a scaler and clipping, enough for the device, and a value read in each step."""

import torch
from timed import Pace, main
from torch import nn, optim


def train(is_fast: bool, pace: Pace) -> None:
    layer = nn.TransformerEncoderLayer(1024, 16, 4096, batch_first=True)
    model = nn.TransformerEncoder(layer, 6).cuda()
    optimizer = optim.AdamW(model.parameters(), lr=1e-4)
    scaler = torch.amp.GradScaler()
    losses = []
    for _ in pace.over(range(200)):
        x = torch.randn(32, 256, 1024, device="cuda")
        with torch.autocast("cuda", torch.float16):
            loss = (model(x) - x).square().mean()
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
    print(f"{losses[0]:.3f} {losses[-1]:.3f}")


if __name__ == "__main__":
    main(train)
