"""Putting models together that were trained apart, in one round or a few: alignment x weights x rule."""
