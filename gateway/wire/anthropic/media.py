"""Blocks of the API that are no plain text: the text in them, and an identity for the rest.
Knows no marks and no roles.

Source: anthropic 2.14 `types/image_block_param.py`, `document_block_param.py`,
`search_result_block_param.py`.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from typing import Final

from gateway.wire.anthropic.errors import invalid, unknown_tag
from gateway.wire.fields import Node

SOURCES: Final = {
    "image": ("base64", "url", "file"),
    "document": ("base64", "text", "content", "url", "file"),
}

UNSEEN: Final = frozenset(
    {
        "advisor_tool_result",
        "bash_code_execution_tool_result",
        "browser_state",
        "code_execution_tool_result",
        "compaction",
        "container_upload",
        "document",
        "fallback",
        "image",
        "mcp_tool_result",
        "mcp_tool_use",
        "server_tool_use",
        "text_editor_code_execution_tool_result",
        "tool_addition",
        "tool_removal",
        "tool_search_tool_result",
        "web_fetch_tool_result",
        "web_search_tool_result",
    }
)
"""Block types of the API that a text model behind this gateway cannot see. A document that is text
it can."""


_SPACES: Final = b" \t\n\r\x0b\x0c"
_PIECE: Final = 1024 * 1024
"""Letters of base64 decoded at a time, a multiple of four."""


def readable_text(node: Node, kind: str) -> str | None:
    """The text of a search result, or of a document whose source is text; None where only its
    identity is known."""
    if kind == "search_result":
        lines = [node.text("title"), node.text("source")]
        return "\n".join(lines + [_inner_text(inner) for inner in node.children("content")])
    source = node.child("source") if kind in SOURCES else None
    if source is None:
        return None
    form = source.text("type")
    if form not in SOURCES[kind]:
        raise unknown_tag(source.path, form, SOURCES[kind])
    head = (
        [node.text(name) for name in ("title", "context") if node.has(name)]
        if kind == "document"
        else []
    )
    if form == "text":
        return "\n".join([*head, source.text("data")])
    if form == "content":
        if isinstance(source.value.get("content"), str):
            return "\n".join([*head, source.text("content")])
        inners = source.children("content")
        if all(inner.value.get("type") == "text" for inner in inners):
            return "\n".join(head + [_inner_text(inner) for inner in inners])
    return None


def identity(node: Node, kind: str) -> str:
    """An identity of a block's content: equal for equal bytes of one media type, however their
    base64 is written.

    Raises `InvalidRequest` for an image or document whose source is broken.
    """
    source = node.child("source")
    if kind not in SOURCES or source is None:
        if kind in SOURCES:
            raise invalid(node.at("source"), "Field required")
        return kind
    form = source.text("type")
    if form != "base64":
        return (
            f"{kind} {form} "
            f"{_digest(source.text_or('url' if form == 'url' else 'file_id', '').encode())}"
        )
    media_type, data = source.text("media_type"), source.text("data")
    try:
        return f"{kind} {media_type} {_decoded_digest(data.rpartition(',')[2])}"
    except (binascii.Error, ValueError):
        raise invalid(source.at("base64", "data"), "invalid base64 data") from None


def _inner_text(node: Node) -> str:
    node.choice("type", ("text",))
    return node.text("text")


def _decoded_digest(text: str) -> str:
    """The digest of what the base64 stands for, a piece at a time. Raises `binascii.Error`,
    `ValueError`."""
    letters, digest = text.encode("ascii").translate(None, _SPACES), hashlib.sha256()
    for start in range(0, len(letters), _PIECE):
        piece = letters[start : start + _PIECE]
        if b"=" in piece[:-2] or (b"=" in piece and start + _PIECE < len(letters)):
            raise ValueError("something follows the padding")
        digest.update(base64.b64decode(piece, validate=True))
    return digest.hexdigest()


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
