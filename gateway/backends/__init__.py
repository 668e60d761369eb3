"""The places that answer requests: the local engines, and the contract of upstreams."""
