"""The HTTP side: aiohttp routes, bodies and replies around the handler."""
