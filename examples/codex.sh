#!/bin/sh
# Two turns of Codex against a running gateway: the second reads the first's prefix. Needs `npm install -g @openai/codex`, and a
# policy whose model has room for Codex's prompt of about ten thousand tokens: models: [{context: 32768}].
#
#   PCG_URL=http://127.0.0.1:8080   PCG_KEY=any   PCG_MODEL=smollm2-135m-instruct   CODEX=codex
set -eu

export PCG_KEY="${PCG_KEY:-any}"
url="${PCG_URL:-http://127.0.0.1:8080}"
provider="model_providers.pcg={name=\"pcg\", base_url=\"$url/v1\", env_key=\"PCG_KEY\", wire_api=\"responses\"}"

run() {
  "${CODEX:-codex}" exec --json --skip-git-repo-check \
    -c "$provider" -c 'model_provider="pcg"' -m "${PCG_MODEL:-smollm2-135m-instruct}" "$@"
}

run "Say hello in one word." | grep turn.completed
run resume --last "Say goodbye in one word." | grep turn.completed
