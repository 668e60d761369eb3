"""Programs of others, unmodified, against the gateway on the real engine.

Opt-in: each needs what its variable names.

PCG_TEST_CODEX     the command `codex` (npm @openai/codex)
PCG_TEST_CLIENTS   a Python interpreter with llm, langchain-openai, openai-agents and
                   pydantic-ai-slim[openai]
PCG_TEST_OPENAI1   a folder with a 1.x release of openai: pip install --target FOLDER 'openai<2'
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pytest

from tests.conformance.openai.asking import MODEL, Served, filler
from tools.serving import serving

pytestmark = [pytest.mark.engine, pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(1500)]

ROOM: Final = """
models: [{context: 32768, engine: {kv_bytes: 2GiB}}]
server: {drain: {delay: 0s, timeout: 5s}}
tiers: {ssd: {bytes: 0}}
"""
CODEX_EXAMPLE: Final = Path(__file__).parents[3] / "examples" / "codex.sh"


def needed(variable: str) -> str:
    """What a variable names; without it the test is skipped."""
    value = os.environ.get(variable)
    if value is None:
        pytest.skip(f"${variable} is not set")
    return value


def run(command: list[str], folder: Path, **environ: str) -> str:
    """A program's output, started with a home of its own."""
    clean = {"PATH": os.environ["PATH"], "HOME": str(folder), "NO_PROXY": "127.0.0.1"} | environ
    done = subprocess.run(
        command,
        env=clean,
        cwd=folder,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=1400,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def test_codex_reads_its_own_prefix(default_model: Path, tmp_path: Path) -> None:
    """`codex exec`, then `codex exec resume`: the second turn reads what the first has written,
    under fresh item ids."""
    codex = needed("PCG_TEST_CODEX")
    with serving(ROOM) as url:
        told = run(["sh", str(CODEX_EXAMPLE)], tmp_path, PCG_URL=url, PCG_MODEL=MODEL, CODEX=codex)
    first, second = (json.loads(line)["usage"] for line in told.splitlines())
    assert first["input_tokens"] > 2000
    assert second["cached_input_tokens"] > 0.9 * first["input_tokens"]


OPENAI_1: Final = """
import json, sys, openai
assert openai.__version__.startswith("1."), openai.__version__
url, model, words = sys.argv[1:]
gpt = openai.OpenAI(base_url=url + "/v1", api_key="key-one", max_retries=0, timeout=280)
ask = {"model": model, "messages": [{"role": "user", "content": words}], "max_completion_tokens": 2}
seen = [gpt.chat.completions.create(**ask).usage.to_dict()]
*_, last = gpt.chat.completions.create(**ask, stream=True, stream_options={"include_usage": True})
seen.append(last.usage.to_dict())
response = gpt.responses.create(model=model, input=words, max_output_tokens=2)
seen.append(response.usage.to_dict())
*_, event = gpt.responses.create(model=model, input=words, max_output_tokens=2, stream=True)
seen.append(event.response.usage.to_dict())
assert gpt.responses.retrieve(response.id).output_text == response.output_text
try:
    gpt.chat.completions.create(**ask | {"temperature": 3})
except openai.BadRequestError as error:
    seen.append(error.param)
print(json.dumps(seen))
"""


def test_a_1x_release_of_the_sdk(served: Served, tmp_path: Path) -> None:
    """Both APIs, whole and streamed: written once, read three times, and its own error classes."""
    folder = needed("PCG_TEST_OPENAI1")
    told = run(
        [sys.executable, "-c", OPENAI_1, served.url, MODEL, filler()], tmp_path, PYTHONPATH=folder
    )
    chat, streamed, response, events, param = json.loads(told)
    written = chat["prompt_tokens_details"]["cache_write_tokens"]
    assert written > 64
    assert streamed["prompt_tokens_details"]["cached_tokens"] == written
    assert response["input_tokens_details"]["cached_tokens"] == written
    assert events["input_tokens_details"]["cached_tokens"] == written
    assert param == "temperature"


CLIENTS: Final[dict[str, str]] = {
    "langchain": """
from langchain_openai import ChatOpenAI
for api in (False, True):
    chat = ChatOpenAI(model=model, base_url=url, api_key="key-one", max_tokens=2,
                      use_responses_api=api, max_retries=0)
    for _ in range(2):
        details = chat.invoke(words).usage_metadata.get("input_token_details", {})
        seen.append(details.get("cache_read", 0))
""",
    "pydantic-ai": """
from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider
provider = OpenAIProvider(base_url=url, api_key="key-one")
for kind in (OpenAIChatModel, OpenAIResponsesModel):
    agent = Agent(kind(model, provider=provider), model_settings={"max_tokens": 2})
    for _ in range(2):
        usage = agent.run_sync(words).usage
        seen.append((usage() if callable(usage) else usage).cache_read_tokens)
""",
    "openai-agents": """
import openai
from agents import Agent, ModelSettings, OpenAIResponsesModel, Runner, function_tool
from agents import set_tracing_disabled
set_tracing_disabled(True)
@function_tool
def look(berth: int) -> str:
    return "A ship."
client = openai.AsyncOpenAI(base_url=url, api_key="key-one", max_retries=0, timeout=280)
# A small model may not find the end of its answer, and the library takes no half ones.
ends = {"stop": [".", "!", "?", "\\n"]}
settings = ModelSettings(max_tokens=300, temperature=0, tool_choice="look",
                         parallel_tool_calls=False, extra_body=ends)
agent = Agent("a", instructions=words, tools=[look], model=OpenAIResponsesModel(model, client),
              model_settings=settings)
result = Runner.run_sync(agent, "What is at berth 5?", max_turns=3)
seen += [response.usage.input_tokens_details.cached_tokens for response in result.raw_responses]
""",
}


@pytest.mark.parametrize("client", CLIENTS)
def test_clients(served: Served, tmp_path: Path, client: str) -> None:
    """The second request of each reads what the first wrote; an agent's second turn, after its tool
    call, does too."""
    head = (
        "import json, sys\nurl, model, words, seen = sys.argv[1] + '/v1', sys.argv[2], "
        "sys.argv[3], []\n"
    )
    script = head + CLIENTS[client] + "\nprint(json.dumps(seen))"
    told = run([needed("PCG_TEST_CLIENTS"), "-c", script, served.url, MODEL, filler()], tmp_path)
    seen: Any = json.loads(told.splitlines()[-1])
    assert seen[0] == 0
    assert len(seen) >= 2
    assert all(read > 64 for read in seen[1:])


def test_the_llm_command(served: Served, tmp_path: Path) -> None:
    """`llm` with an extra model of ours: it answers, and its log tells what was cached."""
    python = Path(needed("PCG_TEST_CLIENTS"))
    home = tmp_path / "llm"
    home.mkdir()
    entry = {
        "model_id": "pcg",
        "model_name": MODEL,
        "api_base": f"{served.url}/v1",
        "api_key_name": "pcg",
    }
    (home / "extra-openai-models.yaml").write_text(json.dumps([entry]))
    (home / "keys.json").write_text(json.dumps({"pcg": "key-one"}))
    llm, words = str(python.with_name("llm")), filler()
    for _ in range(2):
        run([llm, "-m", "pcg", "-o", "max_tokens", "2", words], tmp_path, LLM_USER_PATH=str(home))
    logs = json.loads(run([llm, "logs", "-n", "2", "--json"], tmp_path, LLM_USER_PATH=str(home)))
    details = [json.loads(log["token_details"] or "{}") for log in logs]
    cached = [each.get("prompt_tokens_details", {}).get("cached_tokens", 0) for each in details]
    assert max(cached) > 64
