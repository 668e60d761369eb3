"""Forced calls, written by a client that takes any allowed token,
are read back from their tokens as what was written.
"""

from __future__ import annotations

import json
import re

import pytest
from jsonschema import Draft202012Validator

from engine.constrain.grammars import Grammars
from engine.output.parser import OutputParser, OutputPiece
from engine.prompt.output_syntax import OutputSyntax
from engine.prompt.tokenizer import HfTokenizer
from engine.prompt.types import Tool
from engine.types import Sampling, ToolChoice
from tests.fakes.call_formats import FORMATS
from tests.fakes.random_client import RandomClient
from tests.fakes.schemas import random_schema

ROOM = 4000
CHOICES = (
    ToolChoice("required"),
    ToolChoice("required", ("tool_0",)),
    ToolChoice("required", parallel=False),
)


@pytest.mark.parametrize(
    "seeds",
    [
        pytest.param(range(20), id="20"),
        pytest.param(range(20, 200), id="200", marks=pytest.mark.long),
    ],
)
def test_forced_calls_are_read_back(
    grammars: Grammars, tokenizer: HfTokenizer, seeds: range
) -> None:
    """All of 200 parse, in every format in turn: names that were offered, arguments in their schema
    with the separators that past calls are rendered with, no text, and every token in one piece."""
    client = RandomClient(tokenizer)
    for seed in seeds:
        tools = tuple(
            Tool(f"tool_{i}", "", random_schema(100 * seed + i)) for i in range(1 + seed % 3)
        )
        form = list(FORMATS.values())[seed % len(FORMATS)]
        sampling = Sampling(max_tokens=ROOM, tool_choice=CHOICES[seed % len(CHOICES)])
        constraint = grammars.constraint(sampling, tools, OutputSyntax(form))
        assert constraint is not None
        written = client.write(constraint, seed, max_tokens=ROOM)
        assert written.is_over
        answer = OutputParser(
            tokenizer,
            sampling,
            "length",
            OutputSyntax(form, frozenset(tool.name for tool in tools)),
        )
        pieces: list[OutputPiece] = []
        for token_id in (*written.token_ids, min(tokenizer.stop_ids)):
            pieces += answer.push(token_id)
        assert pieces[-1].finish == "stop"
        assert [token_id for piece in pieces for token_id in piece.token_ids] == [
            *written.token_ids
        ]
        assert "".join(piece.text for piece in pieces) == ""
        calls = read(pieces)
        assert form.text(calls) == written.text
        for name, arguments in calls:
            value = json.loads(arguments)
            Draft202012Validator({tool.name: tool.parameters for tool in tools}[name]).validate(
                value
            )
            assert bones(arguments) == bones(json.dumps(value, ensure_ascii=False)), arguments


def read(pieces: list[OutputPiece]) -> list[tuple[str, str]]:
    """Names and arguments."""
    calls: list[tuple[str, str]] = []
    for piece in pieces:
        if piece.call is not None and piece.call.name is not None:
            calls.append((piece.call.name, ""))
        if piece.call is not None:
            name, arguments = calls[piece.call.index]
            calls[piece.call.index] = (name, arguments + piece.call.arguments)
    return calls


def bones(text: str) -> str:
    """JSON without what stands in its strings and numbers, which can be spelled in many ways."""
    return re.sub(r"-?\d[\d.eE+\-]*", "0", re.sub(r'"(?:[^"\\]|\\.)*"', '""', text))
