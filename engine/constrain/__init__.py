"""Grammars that an answer must be in, as masks over a vocabulary.

No torch: what a mask does to logits is the sampler's.
"""
