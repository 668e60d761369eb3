"""Prompt types, canonical text, and rendering to token ids. Pure Python."""
