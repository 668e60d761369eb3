"""The beginning of a tag or stop string at the end of a text that is still growing."""

from __future__ import annotations

from collections.abc import Collection


def num_partial(text: str, tags: Collection[str]) -> int:
    """Length of the longest end of `text` that any of `tags` begins with and is longer than.

    So many characters are held back: with more text they may become a tag. 0 without tags.
    """
    longest = max(map(len, tags), default=1) - 1
    lengths = range(min(longest, len(text)), 0, -1)
    return next((n for n in lengths if any(tag.startswith(text[-n:]) for tag in tags)), 0)
