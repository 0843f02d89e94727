"""Packets of parameters as ciphertexts: keys, fixed point, signed messages, sums that need no key."""
