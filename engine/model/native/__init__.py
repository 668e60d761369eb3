"""The native forward pass: one call into the C library per step."""
