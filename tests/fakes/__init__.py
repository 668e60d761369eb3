"""Small stand-ins for clocks, devices, tokenizers, runners and backends."""
