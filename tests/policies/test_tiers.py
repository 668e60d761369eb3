"""The `tiers` section: where KV is kept by default,
and a Redis URL whose password is shown nowhere.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from policies.load import PolicyError, load_policy, parse_policy
from policies.redis_url import RedisUrl
from policies.schema import Policy

PASSWORD = "opensesame"


def load(text: str, environ: dict[str, str] | None = None) -> Policy:
    return parse_policy(text, file="policy.yaml", environ=environ or {}, folder=Path())


def test_the_ssd_tier_is_on_under_the_home() -> None:
    """Without a policy file KV is kept under `$PCG_HOME`, within a modest cap, and not in Redis."""
    tiers = load_policy(None, {"PCG_HOME": "/srv/pcg"}).tiers
    assert (tiers.ssd.path, tiers.ssd.bytes, tiers.ssd.min_free) == (
        "/srv/pcg/kv",
        8 * 1024**3,
        5 * 1024**3,
    )
    assert not tiers.ssd.encrypt
    assert tiers.redis.url is None
    assert (tiers.redis.timeout, tiers.redis.prefix) == (0.05, "pcg:")


def test_a_file_that_changes_one_key_keeps_the_folder() -> None:
    """The shipped path is merged below the operator's keys, and may name a variable of its own."""
    assert load("tiers: {ssd: {bytes: 1GiB}}", {"PCG_HOME": "/a"}).tiers.ssd.path == "/a/kv"
    assert load('tiers: {ssd: {path: "${ENV:DISK}/kv"}}', {"DISK": "/b"}).tiers.ssd.path == "/b/kv"


@pytest.mark.parametrize(
    ("url", "host"),
    [
        ("redis://cache", "cache:6379"),
        (f"redis://:{PASSWORD}@cache.example:7000/3", "cache.example:7000"),
        (f"rediss://user:{PASSWORD}@10.0.0.1:6380?timeout=1", "10.0.0.1:6380"),
        (f"redis+cluster://:{PASSWORD}@node-1:7001", "node-1:7001"),
        ("redis://[::1]:6379", "[::1]:6379"),
        ("valkeys://cache", "cache:6379"),
        (f"unix:///run/redis.sock?password={PASSWORD}", "/run/redis.sock"),
    ],
)
def test_a_url_shows_its_host_alone(url: str, host: str) -> None:
    """In `repr`, in a dump and in the name for people there is no password; the client alone gets
    it."""
    policy = load(f"tiers: {{redis: {{url: '{url}'}}}}")
    redis = policy.tiers.redis
    assert redis.url is not None
    assert (redis.url.host, redis.url.reveal()) == (host, url)
    for shown in (
        repr(policy),
        policy.model_dump_json(),
        json.dumps(policy.model_dump(mode="json")),
        str(redis.url),
    ):
        assert PASSWORD not in shown


@pytest.mark.parametrize(
    "url",
    [
        f"http://:{PASSWORD}@host",
        f"redis://:{PASSWORD}@",
        "redis:",
        f"redis://:{PASSWORD}@host:port",
        f"redis://:{PASSWORD}@host:99999",
        f"{PASSWORD}",
        f"redis://:{PASSWORD}@a b",
        "unix://",
    ],
)
def test_a_bad_url_is_refused_without_repeating_it(url: str) -> None:
    """The problem says what a URL looks like, and not what was written."""
    with pytest.raises(PolicyError) as caught:
        load(f"tiers:\n  redis: {{url: '{url}'}}")
    assert str(caught.value).startswith(
        "policy.yaml:2: tiers.redis.url: must be a URL such as redis://"
    )
    assert PASSWORD not in str(caught.value)


@pytest.mark.parametrize("text", ["url: none", "url: null", "url:", "timeout: 1s"])
def test_no_url_is_no_redis(text: str) -> None:
    """Nothing, null and none mean the same."""
    assert load(f"tiers:\n  redis:\n    {text}").tiers.redis.url is None


def test_a_url_reads_itself() -> None:
    """What was parsed once is taken as it is."""
    url = RedisUrl.parse("redis://host")
    assert RedisUrl.parse(url) is url
