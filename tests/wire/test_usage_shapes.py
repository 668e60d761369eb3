"""Usage in the shapes that providers, gateways and engines really send.

One test for each row of docs/usage-shapes.md.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import pytest

from gateway.wire.anthropic.reported import EXCLUSIVE
from gateway.wire.collected import CollectedUsage
from gateway.wire.openai.reported import USAGE
from gateway.wire.reported import ReportedUsage

DOCUMENT: Final = Path(__file__).parents[2] / "docs" / "usage-shapes.md"


def chat(prompt: int, output: int, **more: Any) -> dict[str, Any]:
    usage = {"prompt_tokens": prompt, "completion_tokens": output, "total_tokens": prompt + output}
    return {"usage": usage | more}


def details(**more: Any) -> dict[str, Any]:
    return {"prompt_tokens_details": more}


FLAT: Final = {"cache_read_input_tokens": 800, "cache_creation_input_tokens": 100}
CLASSES: Final = {"ephemeral_5m_input_tokens": 70, "ephemeral_1h_input_tokens": 30}

SHAPES: dict[str, tuple[dict[str, Any], ReportedUsage]] = {
    "OpenAI chat": (
        chat(4020, 4, **details(audio_tokens=0, cache_write_tokens=4012, cached_tokens=0)),
        ReportedUsage(8, 0, {}, 4012, 4),
    ),
    "OpenAI responses": (
        {
            "response": {
                "usage": {
                    "input_tokens": 12594,
                    "input_tokens_details": {"cached_tokens": 3200},
                    "output_tokens": 1150,
                    "output_tokens_details": {"reasoning_tokens": 1088},
                    "total_tokens": 13744,
                }
            }
        },
        ReportedUsage(9394, 3200, {}, 0, 1150),
    ),
    "Anthropic": (
        {"usage": {"input_tokens": 3, "output_tokens": 9, "cache_creation": CLASSES} | FLAT},
        ReportedUsage(3, 800, {"5m": 70, "1h": 30}, 0, 9),
    ),
    "LiteLLM": (
        chat(
            1000,
            5,
            **details(
                cached_tokens=800,
                text_tokens=100,
                cache_creation_tokens=100,
                cache_creation_token_details=CLASSES,
            ),
            **FLAT,
        ),
        ReportedUsage(100, 800, {"5m": 70, "1h": 30}, 0, 5),
    ),
    "flat names": ({"usage": {"prompt_tokens": 1000} | FLAT}, ReportedUsage(100, 800, {}, 100, 0)),
    "OpenRouter": (
        {
            "usage": {
                "cost": 0.025265,
                "input_tokens": 4020,
                "input_tokens_details": {"cache_write_tokens": 4012, "cached_tokens": 0},
                "is_byok": False,
                "output_tokens": 5,
                "total_tokens": 4025,
            }
        },
        ReportedUsage(8, 0, {}, 4012, 5),
    ),
    "Databricks": (chat(1000, 5, **FLAT), ReportedUsage(100, 800, {}, 100, 5)),
    "Snowflake Claude": (
        {"usage": {"input_tokens": 2, "output_tokens": 256} | FLAT},
        ReportedUsage(2, 800, {}, 100, 256),
    ),
    "flat names beside the prompt": (
        chat(1000, 5, **FLAT) | {"usage": chat(1000, 5, **FLAT)["usage"] | {"total_tokens": 1905}},
        ReportedUsage(1000, 800, {}, 100, 5),
    ),
    "Bedrock's OpenAI endpoint": (
        {
            "usage": {
                "input_tokens": 88,
                "input_tokens_details": {"cache_write_tokens": 86, "cached_tokens": 0},
                "output_tokens": 14,
                "total_tokens": 102,
            }
        },
        ReportedUsage(2, 0, {}, 86, 14),
    ),
    "Groq": (
        chat(336, 96, queue_time=0.005, total_time=1.14, **details(cached_tokens=256)),
        ReportedUsage(80, 256, {}, 0, 96),
    ),
    "Groq stream": (
        {"choices": [], "x_groq": chat(336, 96, **details(cached_tokens=256))},
        ReportedUsage(80, 256, {}, 0, 96),
    ),
    "vLLM": (
        chat(2679, 8, **details(cached_tokens=64, created_cache_tokens=2560)),
        ReportedUsage(2615, 64, {}, 0, 8),
    ),
    "SGLang": (
        chat(100, 8, reasoning_tokens=0, **details(cached_tokens=64)),
        ReportedUsage(36, 64, {}, 0, 8),
    ),
    "llama.cpp": (
        chat(100, 8) | {"timings": {"cache_n": 60, "prompt_n": 40, "predicted_n": 8}},
        ReportedUsage(40, 60, {}, 0, 8),
    ),
    "Ollama": (chat(172, 88), ReportedUsage(172, None, {}, 0, 88)),
    "DeepSeek": (
        chat(563, 116, prompt_cache_hit_tokens=512, prompt_cache_miss_tokens=51),
        ReportedUsage(51, 512, {}, 0, 116),
    ),
    "Qwen": (
        chat(
            100,
            5,
            **details(
                cached_tokens=0,
                cache_creation_input_tokens=90,
                cache_creation={"ephemeral_5m_input_tokens": 90},
                cache_type="ephemeral",
            ),
        ),
        ReportedUsage(10, 0, {"5m": 90}, 0, 5),
    ),
    "Kimi": (chat(100, 5, cached_tokens=40), ReportedUsage(60, 40, {}, 0, 5)),
    "Kimi stream": (
        {"choices": [{"index": 0, "finish_reason": "stop"} | chat(100, 5, cached_tokens=40)]},
        ReportedUsage(60, 40, {}, 0, 5),
    ),
    "xAI": (
        {
            "usage": {
                "prompt_tokens": 125,
                "completion_tokens": 48,
                "total_tokens": 183,
                "prompt_tokens_details": {"text_tokens": 125, "cached_tokens": 98},
                "completion_tokens_details": {"reasoning_tokens": 10},
            }
        },
        ReportedUsage(27, 98, {}, 0, 58),
    ),
    "Mistral": (
        chat(268, 5, num_cached_tokens=224),
        ReportedUsage(44, 224, {}, 0, 5),
    ),
    "Gemini's OpenAI format": (
        {
            "usage": {
                "prompt_tokens": 35,
                "completion_tokens": 12,
                "total_tokens": 109,
                "prompt_tokens_details": {"cached_tokens": 30},
            }
        },
        ReportedUsage(5, 30, {}, 0, 12, anomaly=True),
    ),
}


def collected(name: str, message: dict[str, Any]) -> ReportedUsage | None:
    usage = CollectedUsage(EXCLUSIVE if name == "Anthropic" else USAGE)
    for fields in usage.format.usages(message):
        usage.add(fields)
    return usage.read()


@pytest.mark.parametrize(("name", "shape"), SHAPES.items(), ids=SHAPES)
def test_a_shape_is_read(name: str, shape: tuple[dict[str, Any], ReportedUsage]) -> None:
    """To the token, read and written."""
    message, expected = shape
    assert collected(name, message) == expected


def test_every_row_has_a_shape() -> None:
    """The table and the tests have the same rows, in the same order."""
    lines = DOCUMENT.read_text(encoding="utf-8").splitlines()
    rows = [line.split(" | ")[0].removeprefix("| ") for line in lines if line.startswith("| ")]
    assert rows[2:] == list(SHAPES)


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        (FLAT | {"prompt_tokens": 4}, ReportedUsage(4, 800, {}, 100, 0)),
        (FLAT | {"prompt_tokens": 4, "total_tokens": 904}, ReportedUsage(4, 800, {}, 100, 0)),
        (
            FLAT | {"input_tokens": 1000, "output_tokens": 5, "total_tokens": 1005},
            ReportedUsage(100, 800, {}, 100, 5),
        ),
        (
            FLAT | {"prompt_tokens": 1000, "prompt_tokens_details": {"cached_tokens": 0}},
            ReportedUsage(100, 800, {}, 100, 0),
        ),
        (
            {"prompt_tokens": 100, "prompt_tokens_details": {"cached_tokens": 128}},
            ReportedUsage(0, 128, {}, 0, 0, anomaly=True),
        ),
    ],
)
def test_whether_the_prompt_counts_its_cache(
    usage: dict[str, Any], expected: ReportedUsage
) -> None:
    """The total says it; without one, names and sizes do; OpenAI's own names always count it."""
    assert collected("", {"usage": usage}) == expected
