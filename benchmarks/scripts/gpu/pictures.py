"""Pictures for the scripts here: files to decode, or tensors that are there already."""

from __future__ import annotations

import io

import numpy as np
import torch
from PIL import Image
from torch.utils.data import Dataset


class Files(Dataset[tuple[torch.Tensor, int]]):
    """JPEGs in memory, decoded and made smaller when they are asked for."""

    def __init__(self, count: int) -> None:
        rng = np.random.default_rng(0)
        self.count, self.files = count, []
        for _ in range(16):
            small = Image.fromarray(rng.integers(0, 255, (20, 20, 3), dtype=np.uint8))
            file = io.BytesIO()
            small.resize((400, 400)).save(file, "JPEG")
            self.files.append(file.getvalue())

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        file = io.BytesIO(self.files[index % len(self.files)])
        picture = Image.open(file).convert("RGB").resize((224, 224))
        x = np.asarray(picture, dtype=np.float32) / 255
        return torch.from_numpy(x.transpose(2, 0, 1).copy()), index % 10


class Tensors(Dataset[tuple[torch.Tensor, int]]):
    def __init__(self, count: int, data: torch.Tensor) -> None:
        self.count, self.data = count, data

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return self.data[index % len(self.data)], index % 10
