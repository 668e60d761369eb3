"""A corpus of requests, and the proof that two checkouts answer it with the same bytes.

Imports no product code.
"""
