"""Experiments as Flower apps: the two apps, an app directory, keys, and a federation on this machine for trying."""
