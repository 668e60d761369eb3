"""Decisions as data and pure functions: caching, TTL, tenancy and price policies read from YAML."""
