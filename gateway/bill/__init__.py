"""Bills of requests and how headers and records show them."""
