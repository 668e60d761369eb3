"""State between requests: responses, batches, answers in the background."""
