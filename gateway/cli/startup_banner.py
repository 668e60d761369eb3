"""The text shown when the gateway is ready: commands and programs to paste. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

_BLOCK = """\

pcg is ready at {url}
  serving {models}

Anthropic's API
  curl {url}/v1/messages -H 'anthropic-version: 2023-06-01' -H 'content-type: application/json' -d '
    {{"model": "claude-sonnet-5", "max_tokens": 64,
     "messages": [{{"role": "user", "content": "Say hello."}}]}}'

  import anthropic
  client = anthropic.Anthropic(base_url="{url}", api_key="local")
  client.messages.create(model="claude-sonnet-5", max_tokens=64,
                         messages=[{{"role": "user", "content": "Say hello."}}])

OpenAI's API
  curl {url}/v1/chat/completions -H 'content-type: application/json' -d '
    {{"model": "gpt-5", "messages": [{{"role": "user", "content": "Say hello."}}]}}'

  import openai
  client = openai.OpenAI(base_url="{url}/v1", api_key="local")
  client.chat.completions.create(model="gpt-5",
                                 messages=[{{"role": "user", "content": "Say hello."}}])

What it saved: add -i to curl and read the pcg-* headers, or see {url}/metrics
Stop it with ctrl-C.
"""


def startup_banner(url: str, models: Mapping[str, Sequence[str]]) -> str:
    """Working commands and programs for a gateway at `url`. `models`: names -> further ids
    served."""
    served = "; ".join(
        f"{name} (also as {', '.join(aliases)})" if aliases else name
        for name, aliases in models.items()
    )
    return _BLOCK.format(url=url, models=served)
