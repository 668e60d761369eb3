"""The step loop, admission and the pages of running requests."""
