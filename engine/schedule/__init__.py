"""The tokens that the next step computes of each sequence. Pure Python, no torch."""
