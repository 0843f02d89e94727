"""Differential privacy: how much noise, and what it is worth."""
