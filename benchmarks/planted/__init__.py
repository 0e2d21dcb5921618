"""Training scripts made to order: each with one planted fault of a known size, or with none."""
