"""Trains a tiny transformer to continue Python source, byte by byte; there is no DataLoader.

    python sample_scripts/no_dataloader.py [key=value ...]

The text is the source of Python's own standard library, kept as uint16 tokens in a file that is
mapped into memory, as nanoGPT does it.

What a profiler should find: about half of each step goes by in `get_batch`, before the forward:
to draw 16 places of the text at random it shuffles all of them (`randperm`; `randint` would do).
There is no loader to blame, so it is the script's own time between the optimizer's step and the
next forward.
"""

import os
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from overrides import override
from torch import nn
from truth import truth


@dataclass
class Settings:
    steps: int = 160
    tokens: int = 2_000_000  # of the text to train on
    batch_size: int = 16
    block_size: int = 128  # tokens of context
    layers: int = 2
    heads: int = 4
    width: int = 64
    learning_rate: float = 3e-3
    seed: int = 1337


def map_tokens(path):
    """Maps the tokens of the standard library's modules; writes them first if need be."""
    if not path.exists():
        modules = sorted(Path(os.__file__).parent.glob("*.py"))
        text = b"\n".join(module.read_bytes() for module in modules)
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_name(f"{path.name}-{os.getpid()}")
        np.frombuffer(text, dtype=np.uint8).astype(np.uint16).tofile(draft)
        draft.replace(path)
    return np.memmap(path, dtype=np.uint16, mode="r")


@truth("get_batch")
def get_batch(tokens, settings):
    starts = torch.randperm(len(tokens) - settings.block_size)[: settings.batch_size].tolist()
    rows = [tokens[start : start + settings.block_size + 1] for start in starts]
    rows = torch.from_numpy(np.stack(rows).astype(np.int64))
    return rows[:, :-1], rows[:, 1:]


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attend = nn.Linear(width, 3 * width)
        self.project = nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x):
        batch, length, width = x.shape
        queries_keys_values = self.attend(self.norm1(x)).view(batch, length, 3, self.heads, -1)
        query, key, value = queries_keys_values.permute(2, 0, 3, 1, 4)
        y = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.project(y.transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp(self.norm2(x))


class Transformer(nn.Module):
    def __init__(self, settings, vocabulary=256):
        super().__init__()
        width = settings.width
        self.token = nn.Embedding(vocabulary, width)
        self.position = nn.Parameter(0.02 * torch.randn(settings.block_size, width))
        self.blocks = nn.Sequential(*[Block(width, settings.heads) for _ in range(settings.layers)])
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens):
        return self.head(self.norm(self.blocks(self.token(tokens) + self.position)))


settings = override(Settings(), sys.argv[1:])
torch.manual_seed(settings.seed)
tokens = map_tokens(Path(__file__).parent / "data" / "stdlib.bin")[: settings.tokens]
model = Transformer(settings)
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.AdamW(model.parameters(), lr=settings.learning_rate)

with truth("training"):
    for step in range(settings.steps):
        inputs, targets = get_batch(tokens, settings)
        loss = criterion(model(inputs).flatten(0, 1), targets.flatten())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        truth.count("steps")
        if step % 50 == 0:
            print(f"step {step}: loss {loss.item():.4f}")
print(f"final loss {loss.item():.6f}")
