"""The documents name only commands that exist."""

from __future__ import annotations

import re
import stat
import subprocess
from pathlib import Path

import pytest

from policies.load import parse_policy

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
VERBS = set(re.findall(r"^([a-z][a-z-]*):", MAKEFILE, flags=re.MULTILINE))


def shown(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", DOCUMENTS, ids=shown)
def test_make_verbs_in_documents_exist(path: Path) -> None:
    """Each `make verb` in code text of a document is a target of the Makefile."""
    text = path.read_text(encoding="utf-8")
    code = "\n".join(re.findall(r"```.*?```|`[^`\n]+`", text, flags=re.DOTALL))
    assert set(re.findall(r"\bmake ([a-z][a-z-]*)", code)) <= VERBS


@pytest.mark.parametrize("path", DOCUMENTS, ids=shown)
def test_links_between_documents_lead_somewhere(path: Path) -> None:
    """Each relative link points at a file or folder of the repository."""
    targets = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", path.read_text(encoding="utf-8"))
    local = [target for target in targets if not re.match(r"[a-z]+:", target)]
    assert [target for target in local if not (path.parent / target).exists()] == []


@pytest.mark.parametrize(
    "verb",
    ["venv", "serve", "demo", "test", "long", "check", "fmt", "bench", "gpu-check", "ci", "help"],
)
def test_makefile_has_the_verb(verb: str) -> None:
    """The verbs people rely on are there, and `make help` explains each of them."""
    assert re.search(rf"^{verb}:.*## ", MAKEFILE, flags=re.MULTILINE)


def test_readme_names_the_two_commands() -> None:
    """The README's quick start and test command are the Makefile's."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert {"make serve", "make demo", "make test"} <= set(re.findall(r"make [a-z]+", readme))


def test_readme_programs_compile() -> None:
    """The Python in the README is Python, and its policy is a policy."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    programs = re.findall(r"```python\n(.*?)```", readme, flags=re.DOTALL)
    assert programs
    for program in programs:
        compile(program, "README.md", "exec")
    (text,) = re.findall(r"```yaml\n(.*?)```", readme, flags=re.DOTALL)
    policy = parse_policy(text, file="README.md", environ={"SEARCH_TEAM_KEY": "a-key"}, folder=ROOT)
    assert [tenant.name for tenant in policy.tenants] == ["search-team"]


def test_ci_script_can_be_executed() -> None:
    """`.ci/run` is executable and stops at the first error."""
    script = ROOT / ".ci" / "run"
    assert script.stat().st_mode & stat.S_IXUSR
    assert "set -euo pipefail" in script.read_text(encoding="utf-8")


def test_ci_knows_its_stages() -> None:
    """Asked for a stage that is not there, `.ci/run` fails before it runs anything."""
    done = subprocess.run(
        [ROOT / ".ci" / "run", "nonsense"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert "no such stage: nonsense" in done.stderr


def test_constraints_pin_public_releases() -> None:
    """Every line of constraints.txt is `name==version` without a local version, path or address."""
    lines = [
        line
        for line in (ROOT / "constraints.txt").read_text().splitlines()
        if not line.startswith("#")
    ]
    assert lines == sorted(lines)
    assert [line for line in lines if not re.fullmatch(r"[a-z0-9-]+==[0-9][0-9a-z.]*", line)] == []
    assert "torch==2.13.0" in lines
