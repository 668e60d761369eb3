"""The bottom of the cache: blocks, entries and eviction on the device. Knows no tier."""
