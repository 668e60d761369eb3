"""Data structures that several rooms share. They know nothing of tokens, bytes or tiers."""
