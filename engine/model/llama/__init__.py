"""Llama-shaped decoders: their weights, fused, and their layers on torch."""
