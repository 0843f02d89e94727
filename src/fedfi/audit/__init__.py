"""Attacks on what a server sees, to measure instead of asserting."""
