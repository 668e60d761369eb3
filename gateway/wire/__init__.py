"""Provider wire formats: pure functions between JSON bytes and requests or events. No aiohttp."""
