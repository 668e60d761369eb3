"""Lower tiers as the cache uses them: keys and bytes, no tree."""
