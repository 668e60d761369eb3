"""The heart: blocks, the radix index, entries and pages. Pure Python, no torch."""
