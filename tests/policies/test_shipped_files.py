"""The shipped files agree with each other: schema, presets, commented example, JSON Schema."""

from __future__ import annotations

import json
import re
from pathlib import Path

import jsonschema
import pytest
from ruamel.yaml import YAML

from policies.json_schema import json_schema
from policies.keys import key_paths
from policies.load import load_policy, parse_policy, shipped
from policies.schema import Policy

EXAMPLE = Path(__file__).parents[2] / "examples" / "policy.yaml"


@pytest.fixture(scope="module")
def validator() -> jsonschema.Draft202012Validator:
    """Of the schema `pcg schema` prints."""
    schema = json.loads(json.dumps(json_schema()))
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


def test_the_example_is_the_default() -> None:
    """Every value in the commented file is what holds without it."""
    assert load_policy(EXAMPLE, {}) == load_policy(None, {})


def test_the_example_names_every_key() -> None:
    """Keys of lists that ship empty stand in a comment; each is followed by a colon."""
    text = EXAMPLE.read_text()
    assert text.startswith("# yaml-language-server: $schema=pcg-policy.schema.json\n")
    names = {path.rpartition(".")[2] for path in key_paths()}
    assert {name for name in names if not re.search(rf"\b{name}:", text)} == set()


def test_the_commented_tenant_works() -> None:
    """The example's last lines do what they say once the comment signs are gone."""
    before, head, commented = EXAMPLE.read_text().rpartition("tenants: []")
    tenants = re.sub(r"^#(  - name|    keys)", r"\1", commented, flags=re.MULTILINE)
    text = f"{before}{head[:-3]}{tenants}".replace("${FILE:/run/secrets/pcg_key_research}", "k2")
    policy = parse_policy(
        text, file="policy.yaml", environ={"PCG_KEY_RESEARCH": "k1"}, folder=Path()
    )
    assert [(tenant.name, len(tenant.keys)) for tenant in policy.tenants] == [("research", 2)]


def test_the_commented_upstream_works() -> None:
    """So do the lines under `backends`."""
    before, _, rest = EXAMPLE.read_text().partition("backends: []")
    commented, _, after = rest.partition("\n\n")
    text = f"{before}backends:{re.sub('^#', '', commented, flags=re.MULTILINE)}\n\n{after}"
    (backend,) = parse_policy(
        text, file="policy.yaml", environ={"UPSTREAM_KEY": "k"}, folder=Path()
    ).backends
    assert (backend.name, backend.models[1].model, backend.timeouts.answer) == (
        "vllm",
        "Qwen/Qwen3-32B",
        600.0,
    )
    assert backend.api_key is not None
    assert backend.api_key.reveal() == "k"
    assert "'k'" not in repr(backend)
    assert '"k"' not in backend.model_dump_json()


def test_the_schema_accepts_the_example(validator: jsonschema.Draft202012Validator) -> None:
    """What an editor shows for the shipped file: nothing."""
    assert list(validator.iter_errors(YAML(typ="safe").load(EXAMPLE.read_text()))) == []


def test_presets_are_policy_files(validator: jsonschema.Draft202012Validator) -> None:
    """They go through the same schema as an operator's file."""
    assert list(validator.iter_errors(shipped())) == []


@pytest.mark.parametrize(
    "text",
    [
        "server:",
        "server: {port: '${ENV:PORT}', max_body: 1024, sse: {keepalive: none}}",
        "caching: {unmarked_ttl: 0, automatic: '${ENV:A:-true}', ttl_classes: {5m: 1h30m}}",
        "models: [{engine: {kv_bytes: 12.5%}}]",
        "tenants: [{name: a, keys: ['${FILE:/x}']}]",
        "backends: [{base_url: 'https://api.example.com/v1', models: [{match: a, model: b}], "
        "api_key: '${ENV:K}'}]",
        "tiers: {ssd: {bytes: 0}, redis: {url: none}}",
        "tiers: {redis: {url: 'rediss://user:word@host:6380/1', timeout: 0.1}}",
        "tiers: {redis: {url: 'unix:///run/redis.sock'}}",
        "tiers: {redis: {url: '${ENV:REDIS_URL}'}}",
        "prices: {models: [{match: x, input: 1, write: {1h: 2}}]}",
    ],
)
def test_the_schema_accepts_every_form(
    validator: jsonschema.Draft202012Validator, text: str
) -> None:
    """References, empty sections, text and number forms."""
    assert list(validator.iter_errors(YAML(typ="safe").load(text))) == []


@pytest.mark.parametrize(
    "text",
    [
        "servr: {}",
        "server: {prot: 1}",
        "server: {port: http}",
        "server: {port: -1}",
        "caching: {unmarked_ttl: 5x}",
        "caching: {ttl_classes: {bogus: 5m}}",
        "models: [{engine: {exact: maybe}}]",
        "dialects: {match: x}",
        "tenants: [{name: 'a b'}]",
        "tiers: {ssd: {path: 5}}",
        "tiers: {redis: {url: 'http://host'}}",
        "backends: [{base_url: 'ftp://host'}]",
        "backends: [{models: ['a']}]",
    ],
)
def test_the_schema_refuses_mistakes(validator: jsonschema.Draft202012Validator, text: str) -> None:
    """An editor sees what `pcg check` would say."""
    assert list(validator.iter_errors(YAML(typ="safe").load(text))) != []


def test_every_key_is_described() -> None:
    """The description feeds editors and the documentation."""
    schema = json_schema()
    for section in (schema, *schema["$defs"].values()):
        for name, key in section.get("properties", {}).items():
            assert key.get("description"), name
        if "properties" in section:
            assert section["additionalProperties"] is False


def test_defaults_are_written_as_people_write_them() -> None:
    """ "10s" and "25%", not 10.0 and a fraction."""
    definitions = json_schema()["$defs"]
    assert definitions["SsePolicy"]["properties"]["keepalive"]["default"] == "10s"
    assert definitions["EnginePolicy"]["properties"]["kv_bytes"]["default"] == "25%"
    assert definitions["CachingPolicy"]["properties"]["unmarked_ttl"]["default"] == "5m"


def test_a_dumped_policy_loads_as_itself() -> None:
    """What a policy resolved to can be written down and read again."""
    policy = load_policy(None, {})
    assert parse_policy(policy.model_dump_json(), file="dump", environ={}, folder=Path()) == policy


def test_key_paths_walk_the_whole_schema() -> None:
    """Sections before their keys, list items marked."""
    paths = list(key_paths())
    assert paths[:3] == ["server", "server.host", "server.port"]
    assert {
        "models[].engine.kv_bytes",
        "presets.openai.read_step",
        "prices.models[].write",
        "tenants[].keys",
    } <= set(paths)
    assert len(paths) == len(set(paths))


def test_the_schemas_own_tables_are_the_shipped_ones() -> None:
    """Tables that stand in both places, so that a file can change one line of them."""
    assert Policy().caching == load_policy(None, {}).caching
    assert Policy().prices.multipliers == load_policy(None, {}).prices.multipliers
    assert Policy().prices.usd_per_mtok == load_policy(None, {}).prices.usd_per_mtok


@pytest.mark.parametrize(
    "file", sorted((EXAMPLE.parent / "policies").glob("*.yaml")), ids=lambda file: file.stem
)
def test_example_policies_are_fine(file: Path, validator: jsonschema.Draft202012Validator) -> None:
    """They load with the variables they name, each backend has a name of its own, and an editor
    sees no mistake."""
    text = file.read_text()
    names = re.findall(r"\$\{ENV:([A-Z_]+)\}", text)
    policy = load_policy(file, dict.fromkeys(names, "some-key"))
    assert policy.models == ()
    assert {backend.api for backend in policy.backends} == {"anthropic", "openai"}
    assert list(validator.iter_errors(YAML(typ="safe").load(text))) == []
