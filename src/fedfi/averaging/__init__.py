"""Federated averaging and its neighbours, the baselines of every family."""
