"""`pcg serve` with a real worker and the real grammar compiler:
hostile forms by every way there is to ask for one.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest

from tests.fakes.hostile_forms import BORNE, LEAST, REFUSED, many_patterns
from tools import serving

pytestmark = [pytest.mark.engine, pytest.mark.slow]

TOO_LARGE = {"type": "object", "properties": {"id": {"enum": [0, LEAST]}}, "required": ["id"]}
TOO_DEEP = json.loads(REFUSED["chain of items"].definition)
TOO_COSTLY = json.loads(REFUSED["patterns at once"].definition)
SAID: Any = [{"role": "user", "content": "Hello"}]


@pytest.fixture(scope="module")
def server(small_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[serving.Server]:
    """One gateway with one worker for all tests here: it has to outlive them."""
    home = serving.make_home(tmp_path_factory.mktemp("hostile") / "home")
    policy = (
        f"models: [{{name: m, source: '{small_model}', engine: {{kv_bytes: "
        f"128MiB}}}}]\nserver: {{drain: {{delay: 0s}}}}"
    )
    server = serving.start(home, policy)
    try:
        yield server
    finally:
        server.stop()


@pytest.fixture
def anthropics(server: serving.Server) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(
        base_url=server.base_url, api_key="k", max_retries=0, timeout=120
    ) as client:
        yield client


@pytest.fixture
def openais(server: serving.Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(
        base_url=f"{server.base_url}/v1", api_key="k", max_retries=0, timeout=120
    ) as client:
        yield client


@pytest.fixture(autouse=True)
def outlived(server: serving.Server, openais: openai.OpenAI) -> Iterator[None]:
    """The worker is the one it was, and answers."""
    pids = server.worker_pids()
    yield
    assert server.worker_pids() == pids
    assert openais.chat.completions.create(model="m", messages=SAID, max_tokens=2).choices


@pytest.mark.parametrize(
    "schema", [TOO_LARGE, TOO_DEEP, TOO_COSTLY], ids=["large", "deep", "costly"]
)
def test_schemas(
    openais: openai.OpenAI, anthropics: anthropic.Anthropic, schema: dict[str, Any]
) -> None:
    """In each dialect's own field, and its own 400 that names it."""
    named: Any = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    with pytest.raises(openai.BadRequestError) as refused:
        openais.chat.completions.create(
            model="m", messages=SAID, max_tokens=5, response_format=named
        )
    assert refused.value.param == "response_format"
    flat: Any = {"format": {"type": "json_schema", "name": "x", "schema": schema}}
    with pytest.raises(openai.BadRequestError) as refused:
        openais.responses.create(model="m", input="Hello", text=flat)
    assert refused.value.param == "text.format"
    config: Any = {"output_config": {"format": {"type": "json_schema", "schema": schema}}}
    with pytest.raises(anthropic.BadRequestError, match=r"output_config\.format"):
        anthropics.messages.create(model="m", messages=SAID, max_tokens=5, extra_body=config)


@pytest.mark.parametrize(
    "schema", [TOO_LARGE, TOO_DEEP, TOO_COSTLY], ids=["large", "deep", "costly"]
)
def test_forced_tools(
    openais: openai.OpenAI, anthropics: anthropic.Anthropic, schema: dict[str, Any]
) -> None:
    """A tool that has to be called keeps its schema, or the request is refused for its tools; one
    that may be does no harm."""
    function: Any = {"type": "function", "function": {"name": "f", "parameters": schema}}
    with pytest.raises(openai.BadRequestError) as refused:
        openais.chat.completions.create(
            model="m", messages=SAID, max_tokens=5, tools=[function], tool_choice="required"
        )
    assert refused.value.param == "tools"
    tool: Any = {"name": "f", "input_schema": {"type": "object", **schema}}
    with pytest.raises(anthropic.BadRequestError, match="tools"):
        anthropics.messages.create(
            model="m", messages=SAID, max_tokens=5, tools=[tool], tool_choice={"type": "any"}
        )
    function["function"]["parameters"] = TOO_LARGE
    assert openais.chat.completions.create(
        model="m", messages=SAID, max_tokens=2, tools=[function]
    ).choices


@pytest.mark.parametrize(
    "name", ["smallest integer in Lark", "Lark rules", "Lark rules that repeat"]
)
def test_grammars(openais: openai.OpenAI, name: str) -> None:
    """As vLLM's server takes them, by both names."""
    text = REFUSED[name].definition
    for wish in ({"guided_grammar": text}, {"structured_outputs": {"grammar": text}}):
        with pytest.raises(openai.BadRequestError):
            openais.chat.completions.create(model="m", messages=SAID, max_tokens=5, extra_body=wish)


@pytest.mark.parametrize(
    "name", [name for name, form in BORNE.items() if form.kind == "json_schema"]
)
def test_what_may_be_borne(openais: openai.OpenAI, name: str) -> None:
    """A refusal of the request, or an answer; never an error of ours."""
    schema = json.loads(BORNE[name].definition)
    form: Any = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    with suppress(openai.BadRequestError):
        assert openais.chat.completions.create(
            model="m", messages=SAID, max_tokens=8, response_format=form
        ).choices


def test_bystanders_do_not_wait(openais: openai.OpenAI) -> None:
    """While costly forms are tried out one after the other, requests without one are answered."""
    schemas = [json.loads(many_patterns(number).definition) for number in (18, 19)]

    def refused(schema: Any) -> None:
        form: Any = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
        with pytest.raises(openai.BadRequestError):
            openais.chat.completions.create(
                model="m", messages=SAID, max_tokens=5, response_format=form
            )

    with ThreadPoolExecutor(2) as pool:
        hostile = [pool.submit(refused, schema) for schema in schemas]
        num_answers = 0
        while not all(one.done() for one in hostile):
            assert openais.chat.completions.create(model="m", messages=SAID, max_tokens=2).choices
            num_answers += 1
    for one in hostile:
        one.result()
    assert num_answers > len(hostile)
