"""Each provider's caching rules as pure functions: Request -> CachePlan, CacheReport -> Usage."""
