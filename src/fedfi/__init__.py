"""fedfi: what each client of an uneven federation trains, shares, hides and takes back."""

__version__ = "0.1.0"
