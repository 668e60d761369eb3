"""A provider's rules as pure functions.

Nothing here tokenizes and nothing here knows a price. A dialect decides which prefixes may be read
and which must be written; the engine decides which are there.

Request parameters a dialect understands, absent where the client left the default: `tool_choice`,
`parallel_tool_calls` (only ever False), `citations` (only ever True), `thinking`, `effort`,
`speed`, `verbosity`, `prompt_cache_key`, `cache_mode` (only ever `explicit`), `cache_ttl_s`,
`retention_s`, `context_management`, `output_format`.
"""
