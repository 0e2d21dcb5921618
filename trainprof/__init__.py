"""Says where every second of an unmodified PyTorch training script goes."""

__version__ = "0.1.0"
