"""Tool calls in text, found as it streams."""
