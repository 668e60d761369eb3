"""Measurements of the running product; no part of the wheel."""
