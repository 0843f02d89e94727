"""Which part of the model a weak client trains."""
