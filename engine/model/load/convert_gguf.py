"""Converts a GGUF file to a model folder: `python -m engine.model.load.convert_gguf FILE.gguf OUT`.

Runs once per model, in a process of its own.

Exit status: 0 converted, 3 the file is damaged, 4 the architecture is not supported; the last line
on stderr says why.
"""

from __future__ import annotations

import sys
from pathlib import Path

import gguf
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

from engine.errors import ModelDamaged, ModelError, ModelUnsupported


def convert(source: Path, out: Path) -> None:
    """Dequantize to bfloat16 and save safetensors, tokenizer.json and config.json in `out`.

    Raises `ModelDamaged` when the file cannot be read, `ModelUnsupported` when transformers has no
    mapping for it.
    """
    try:
        reader = gguf.GGUFReader(source)
    except (ValueError, IndexError, OSError, UnicodeDecodeError, KeyError) as error:
        raise ModelDamaged(f"not a complete GGUF file: {error}") from error
    _check_complete(source, reader)
    folder, place = str(source.parent), {"gguf_file": source.name, "local_files_only": True}
    try:
        model = AutoModelForCausalLM.from_pretrained(
            folder, **place, quantization_config=GgufConfig(dequantize=True), dtype=torch.bfloat16
        )
        tokenizer = AutoTokenizer.from_pretrained(folder, **place)
    except (ValueError, KeyError, NotImplementedError) as error:
        raise ModelUnsupported(
            f"transformers cannot read this GGUF architecture: {error}"
        ) from error
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)


def _check_complete(source: Path, reader: gguf.GGUFReader) -> None:
    """Every tensor must end inside the file."""
    nbytes = source.stat().st_size
    for tensor in reader.tensors:
        if tensor.data_offset + tensor.n_bytes > nbytes:
            raise ModelDamaged(
                f"truncated: tensor {tensor.name} ends after the file's {nbytes} bytes"
            )


def main(arguments: list[str]) -> int:
    """Command line entry; see the module's docstring."""
    source, out = (Path(argument) for argument in arguments)
    try:
        convert(source, out)
    except ModelError as error:
        sys.stderr.write(f"\n{' '.join(str(error).split())}\n")
        return 4 if isinstance(error, ModelUnsupported) else 3
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
