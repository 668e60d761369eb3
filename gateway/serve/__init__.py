"""One request from authentication to its record. No HTTP library."""
