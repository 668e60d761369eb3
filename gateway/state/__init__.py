"""What the gateway remembers between requests: responses, batches, background answers."""
