"""A tier in a Redis or Valkey server that several gateways may share. Needs the `redis` extra."""
