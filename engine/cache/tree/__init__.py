"""Blocks, entries and eviction on the device: knows no plan and no tier."""
