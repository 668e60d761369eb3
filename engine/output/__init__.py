"""From sampled tokens to text, reasoning and tool calls."""
