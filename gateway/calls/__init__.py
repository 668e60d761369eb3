"""One client's call: its exchange, the model it names, the events that answer it."""
