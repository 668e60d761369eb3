"""How models write tool calls: the text around them, and a parser for it as it streams. Pure Python."""
