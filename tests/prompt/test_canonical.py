"""Canonical text: same meaning, same bytes, and nothing of the client's changed."""

from __future__ import annotations

import json

import pytest

from engine.prompt.call_format import HERMES
from engine.prompt.canonical import call_text, result_text, to_json, tool_data
from engine.prompt.types import Tool, ToolCallPart, ToolResultPart


@pytest.mark.parametrize(
    ("sent", "written"),
    [
        ('{"city":"x","unit":"y"}', '{"city": "x", "unit": "y"}'),
        ('{"unit":"y","city":"x"}', '{"unit": "y", "city": "x"}'),
        ('{"enum":["b","a"]}', '{"enum": ["b", "a"]}'),
        ('"\\u00e9"', '"é"'),
        ('"e\\u0301"', '"e\u0301"'),
        ('"<b>&\'"', '"<b>&\'"'),
        ('"\\ud83d\\ude00"', '"😀"'),
        ('"a\\r\\nb\\/"', '"a\\r\\nb/"'),
        (
            "[1, 1.0, 1e2, -0.0, 12345678901234567890]",
            "[1, 1.0, 100.0, -0.0, 12345678901234567890]",
        ),
        ("[true,null,[],{}]", "[true, null, [], {}]"),
    ],
)
def test_json_says_what_the_client_said(sent: str, written: str) -> None:
    """Key order, characters and number kinds are the client's; escapes and spacing are ours."""
    assert to_json(json.loads(sent)) == written


def test_a_tool_has_its_fields_in_one_order() -> None:
    """Whatever the wire format, a tool is written name, description, parameters."""
    tool = Tool("f", "", {"type": "object", "properties": {"z": {}, "a": {}}})
    assert to_json(tool_data(tool)) == (
        '{"type": "function", "function": {"name": "f", "description": "", '
        '"parameters": {"type": "object", "properties": {"z": {}, "a": {}}}}}'
    )


def test_raw_arguments_stay_a_string() -> None:
    """Arguments that were no JSON object are the model's own text, here as in the shipped
    templates."""
    assert (
        call_text(ToolCallPart("c", "f", "{broken"), HERMES)
        == '<tool_call>\n{"name": "f", "arguments": {broken}\n</tool_call>'
    )


def test_a_failed_call_says_so() -> None:
    """Failure is part of what the model must see."""
    assert result_text(ToolResultPart("c", "no such city", is_error=True)) == "Error: no such city"
    assert result_text(ToolResultPart("c", "fine")) == "fine"
