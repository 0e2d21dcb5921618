"""Builds the charts of a run over time."""
