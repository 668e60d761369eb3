"""The `pcg` command: what an operator types, and what a terminal shows."""
