"""A provider that exists nowhere: a wire format and a dialect of its own, to be registered."""
