"""Settings of sample_scripts/train.py, which executes this file and reads `config` from it."""

from dataclasses import dataclass


@dataclass
class TrainingConfig:
    epochs: int = 2
    batch_size: int = 8
    num_workers: int = 0  # the training process loads its own data
    learning_rate: float = 2e-3
    width: int = 48  # channels of the first convolution
    crop: int = 96  # pixels a side, out of tiles of 128
    pictures: int = 320  # to train on, of the 320 there are
    storage_delay_s: float = 0.006  # what slow storage adds to reading one picture
    seed: int = 1337


config = TrainingConfig()
