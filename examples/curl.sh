#!/usr/bin/env bash
# Send one long prompt twice with curl and show the gateway's own headers: first a miss, then a read.
#   examples/curl.sh [http://127.0.0.1:8080]
# The address may also come from PCG_BASE_URL, an API key from PCG_API_KEY. Needs curl and python3 (to quote JSON).
set -euo pipefail

base_url=${1:-${PCG_BASE_URL:-http://127.0.0.1:8080}}
document="$(dirname "$0")/documents/prompt-caching.txt"
# The first line is new in every run, so that the first request is really cold.
edition=${RANDOM}${RANDOM}${RANDOM}

body() { # body QUESTION: a request whose system text is marked to be cached
  python3 - "$1" "${edition}" "${document}" <<'PYTHON'
import json, sys
question, edition, document = sys.argv[1:]
text = f"Edition {edition}.\n\n" + open(document, encoding="utf-8").read()
print(json.dumps({
    "model": "claude-sonnet-5-5",
    "max_tokens": 16,
    "system": [{"type": "text", "text": text, "cache_control": {"type": "ephemeral"}}],
    "messages": [{"role": "user", "content": question}],
}))
PYTHON
}

ask() { # ask QUESTION: print the headers that tell of the cache
  body "$1" | curl --silent --show-error --fail-with-body --max-time 300 --dump-header - --output /dev/null \
    --header "content-type: application/json" --header "anthropic-version: 2023-06-01" \
    --header "x-api-key: ${PCG_API_KEY:-any}" --data-binary @- "${base_url}/v1/messages" |
    tr -d '\r' | grep -iE '^(cache-status|server-timing|pcg-)'
}

echo "> first"
first=$(ask "What does prefill do?")
echo "${first}"
echo "> again, with another question"
second=$(ask "What is an entry?")
echo "${second}"

written=$(sed -n 's/^pcg-cache-write-tokens: //Ip' <<<"${first}")
read_back=$(sed -n 's/^pcg-cache-read-tokens: //Ip' <<<"${second}")
if [ "${read_back:-0}" -gt 0 ] && [ "${read_back}" = "${written}" ]; then
  echo "warm: the second request read the ${read_back} tokens that the first one wrote"
else
  echo "cold: nothing was read" >&2
  exit 1
fi
