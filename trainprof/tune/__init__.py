"""Trials of the same script: measured, compared, kept from the user's files."""
