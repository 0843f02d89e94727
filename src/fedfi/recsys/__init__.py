"""Federated recommendation: every user a client, its ratings and its taste its own."""
