"""A tier in a folder: one file per object, found again after a crash, never over its cap."""
