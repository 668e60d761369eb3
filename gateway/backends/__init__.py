"""Where a request is generated: the local engine, or (later) an upstream."""
