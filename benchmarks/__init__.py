"""Measures what fedfi costs: ``python -m benchmarks``; see the README beside this file."""
