"""Tiers below the device: where the bytes of evicted pages live. Bytes only."""
