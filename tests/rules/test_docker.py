"""What the docker files promise, read from the files: nothing is built."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from gateway.config import read_policy, read_settings
from policies.load import load_policy

ROOT = Path(__file__).parents[2]
DOCKER = ROOT / "docker"
DOCKERFILE = (DOCKER / "Dockerfile").read_text(encoding="utf-8")


def instructions(name: str) -> list[str]:
    """Arguments of every instruction of that name, in order, with continued lines joined."""
    joined = re.sub(r"\\\n\s*", "", DOCKERFILE)
    return [
        line.split(None, 1)[1] for line in joined.splitlines() if line.split(None, 1)[:1] == [name]
    ]


def compose() -> dict[str, Any]:
    return dict(YAML(typ="safe").load((DOCKER / "compose.yaml").read_text(encoding="utf-8")))


def test_image_is_built_in_stages_and_runs_unprivileged() -> None:
    """The last stage has no build tools of the first, and its user is not root."""
    assert len(instructions("FROM")) == 2
    assert instructions("USER") == ["pcg"]
    last_stage = DOCKERFILE.rsplit("\nFROM", 1)[1]
    assert "pip install" not in last_stage
    assert "COPY --from=build" in last_stage


def test_image_checks_its_health() -> None:
    """The health check asks `/readyz`, the port is the exposed one, and the home folder is a
    volume."""
    health = " ".join(instructions("HEALTHCHECK"))
    assert "/readyz" in health
    assert f":{instructions('EXPOSE')[0]}/" in health
    assert instructions("VOLUME") == ["/var/lib/pcg"]
    assert "PCG_HOME=/var/lib/pcg" in DOCKERFILE


def test_image_copies_only_files_that_exist_and_are_sent() -> None:
    """Every source of a COPY from the build context exists and is let through by the ignore
    file."""
    ignore = (DOCKER / "Dockerfile.dockerignore").read_text(encoding="utf-8").splitlines()
    sources = [
        source
        for line in instructions("COPY")
        if not line.startswith("--from")
        for source in line.split()[:-1]
    ]
    assert sources
    assert [source for source in sources if not (ROOT / source).exists()] == []
    assert [source for source in sources if f"!{source}" not in ignore] == []


def test_compose_has_gateway_and_redis() -> None:
    """Both services are there; the gateway is published on loopback alone and gets more time to
    stop than it needs."""
    services = compose()["services"]
    assert set(services) == {"gateway", "redis"}
    assert all(port.startswith("127.0.0.1:") for port in services["gateway"]["ports"])
    assert services["redis"]["healthcheck"]["test"]
    for service in services.values():
        assert service["cap_drop"] == ["ALL"]


def test_the_gateway_uses_the_redis(tmp_path: Path) -> None:
    """The address in its environment is the service's, is what the Redis tier of its policy
    becomes, and needs the extra."""
    environ = compose()["services"]["gateway"]["environment"]
    key = tmp_path / "tenant-key"
    key.write_text("a-key")
    policy = tmp_path / "policy.yaml"
    policy.write_text(
        (DOCKER / "policy.yaml")
        .read_text(encoding="utf-8")
        .replace("/run/secrets/tenant-key", str(key))
    )
    url = read_policy(
        read_settings({**environ, "PCG_HOME": str(tmp_path)}, policy=policy)
    ).tiers.redis.url
    assert url is not None
    assert url.host == "redis:6379"
    assert "redis" in compose()["services"]
    assert re.search(r"\[engine,[a-z,]*redis", DOCKERFILE)


def test_compose_refers_to_files_that_exist() -> None:
    """The build context, the Dockerfile and the mounted policy are where compose.yaml says."""
    gateway = compose()["services"]["gateway"]
    context = (DOCKER / gateway["build"]["context"]).resolve()
    assert (context / gateway["build"]["dockerfile"]).is_file()
    mounted = [volume.split(":")[0] for volume in gateway["volumes"] if volume.startswith("./")]
    assert mounted
    assert [path for path in mounted if not (DOCKER / path).is_file()] == []


def test_policy_of_the_image_is_valid(tmp_path: Path) -> None:
    """The mounted policy loads, listens on all addresses and admits only the tenant with the key
    from the secret."""
    key = tmp_path / "tenant-key"
    key.write_text("a-key-from-a-secret-file")
    text = (DOCKER / "policy.yaml").read_text(encoding="utf-8")
    assert "/run/secrets/tenant-key" in text
    path = tmp_path / "policy.yaml"
    path.write_text(text.replace("/run/secrets/tenant-key", str(key)))
    policy = load_policy(path, {})
    assert policy.server.host == "0.0.0.0"
    assert len(policy.tenants) == 1
    drain = policy.server.drain
    assert drain.delay + drain.timeout < int(
        compose()["services"]["gateway"]["stop_grace_period"].removesuffix("s")
    )
