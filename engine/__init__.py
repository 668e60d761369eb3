"""Prefix-cached local inference as a library: knows nothing of HTTP, YAML or money."""
