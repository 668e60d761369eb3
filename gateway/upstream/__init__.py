"""Requests proxied to upstream engines and providers, byte for byte."""
