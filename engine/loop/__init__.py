"""The step loop and what a request waits for before and between steps."""
