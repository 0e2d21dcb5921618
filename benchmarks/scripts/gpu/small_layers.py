"""Forty small layers: the device waits for launches; mended by a CUDA graph of the whole step."""

import torch
from timed import Pace, main
from torch import nn, optim


def train(is_fast: bool, pace: Pace) -> None:
    block = [layer for _ in range(40) for layer in (nn.Linear(64, 64), nn.LayerNorm(64), nn.ReLU())]
    model = nn.Sequential(*block, nn.Linear(64, 1)).cuda()
    optimizer = optim.SGD(model.parameters(), lr=1e-4)
    x, y = torch.randn(32, 64).cuda(), torch.randn(32, 1).cuda()

    def step() -> None:
        loss = nn.functional.mse_loss(model(x), y)  # here
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    replay = graph_of(step) if is_fast else step
    for _ in pace.over(range(600)):
        replay()


def graph_of(step):
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay


if __name__ == "__main__":
    main(train)
