"""Pieces, their ids and their text,
for the default model's vocabulary and for each kind of vocabulary we accept.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import (
    AddedToken,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

from engine.errors import ModelDamaged, ModelUnsupported
from engine.output.detokenizer import Detokenizer
from engine.prompt.tokenizer import HfTokenizer, Tokenizer
from tests.fakes.tokenizer import ByteTokenizer

CORPUS = [
    "the quick brown fox jumps over the lazy dog",
    " a  b\n\nc",
    "안녕하세요 세계",
    "naïve café 😀👩‍👩‍👧",
] * 3
TEXTS = [
    "",
    " ",
    "  ",
    "x",
    " x",
    "x ",
    "\n x",
    "the quick\n\n",
    "안녕 세계",
    "👩‍👩‍👧‍👦 🇰🇷",
    "é e\u0301",
    "\x00\u200b",
    "a▁b",
]


def byte_level() -> tokenizers.Tokenizer:
    """GPT-2's kind, with a space put in front of every input and BOS by post-processing."""
    made = tokenizers.Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["<s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator(CORPUS, trainer)
    made.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 0)]
    )
    return made


def _byte_fallback() -> tokenizers.Tokenizer:
    pieces = [
        "<unk>",
        "<s>",
        *(f"<0x{byte:02X}>" for byte in range(256)),
        *"▁abcdefghijklmnopqrstuvwxyz",
    ]
    merges = [("t", "h"), ("th", "e"), ("▁", "the"), ("▁", "x"), ("▁", "▁")]
    vocab = {piece: i for i, piece in enumerate([*pieces, *("".join(merge) for merge in merges)])}
    made = tokenizers.Tokenizer(
        models.BPE(vocab, merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True)
    )
    made.add_special_tokens(["<s>"])
    return made


def llama2() -> tokenizers.Tokenizer:
    """SentencePiece with the marker put in front by a normalizer, and a decoder that strips it."""
    made = _byte_fallback()
    made.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    steps = [
        decoders.Replace("▁", " "),
        decoders.ByteFallback(),
        decoders.Fuse(),
        decoders.Strip(" ", 1, 0),
    ]
    made.decoder = decoders.Sequence(steps)
    return made


def metaspace() -> tokenizers.Tokenizer:
    """SentencePiece with the marker put in front by the pre-tokenizer, and spaces stripped."""
    made = _byte_fallback()
    made.normalizer = normalizers.Strip()
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Metaspace(prepend_scheme="always", split=False)]
    )
    made.decoder = decoders.Sequence(
        [decoders.ByteFallback(), decoders.Metaspace(prepend_scheme="always", split=False)]
    )
    return made


def load(made: tokenizers.Tokenizer) -> HfTokenizer:
    """The tokenizer as a model folder would give it."""
    return HfTokenizer(made.to_str().encode(), settings={"bos_token": "<s>"})


KINDS: dict[str, Callable[[], Tokenizer]] = {
    "bytes": ByteTokenizer,
    "byte_level": lambda: load(byte_level()),
    "llama2": lambda: load(llama2()),
    "metaspace": lambda: load(metaspace()),
}
MADE = {name: make() for name, make in KINDS.items()}


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("name", MADE)
def test_a_piece_is_its_text(name: str, text: str) -> None:
    """No piece gains or loses a space, and none gets BOS. (SentencePiece cannot tell its marker
    from a space.)"""
    if name in ("llama2", "metaspace"):
        text = text.replace("▁", " ")
    assert MADE[name].decode(MADE[name].encode(text)) == text


@pytest.mark.parametrize("name", MADE)
@settings(max_examples=50)
@given(a=st.text(), b=st.text())
def test_pieces_join(name: str, a: str, b: str) -> None:
    """The bytes of two pieces are the bytes of the text they were cut from."""
    tokenizer = MADE[name]
    assert tokenizer.decode(tokenizer.encode(a) + tokenizer.encode(b)) == tokenizer.decode(
        tokenizer.encode(a + b)
    )


def test_control_tokens_are_matched_whole() -> None:
    """A template's `<s>` is one id, with nothing invented behind it."""
    for name in ("byte_level", "llama2", "metaspace"):
        tokenizer = MADE[name]
        assert tokenizer.encode("<s>x") == (tokenizer.special_tokens["<s>"], *tokenizer.encode("x"))


def test_the_default_model(tokenizer: HfTokenizer, default_model: Path) -> None:
    """Its control tokens, its stop token and its ids are those of its files."""
    assert (tokenizer.template_tokens["bos_token"], tokenizer.template_tokens["eos_token"]) == (
        "<|im_start|>",
        "<|im_end|>",
    )
    assert tokenizer.stop_ids == {2}
    assert tokenizer.special_tokens["<|im_end|>"] == 2
    plain = tokenizers.Tokenizer.from_file(str(default_model / "tokenizer.json"))
    text = "<|im_start|>user\nHow  are you, 세계? 😀<|im_end|>\n"
    assert list(tokenizer.encode(text)) == plain.encode(text).ids
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_ids_outside_the_vocabulary_are_nothing(tokenizer: HfTokenizer) -> None:
    """Models have more rows than their vocabulary has tokens."""
    assert tokenizer.token_bytes(10**6) == b""


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50)
@given(text=st.text(st.characters(exclude_categories=("Cs", "Cn", "Co", "Cc"))))
def test_token_by_token(tokenizer: HfTokenizer, text: str) -> None:
    """Whatever the text, its tokens one by one give it back, each time a prefix of it.

    Control, private and unassigned characters are left out: this vocabulary has no token for some
    of their bytes.
    """
    detokenizer, shown = Detokenizer(tokenizer), ""
    for token_id in tokenizer.encode(text):
        shown += detokenizer.push((token_id,))
        assert text.startswith(shown)
    assert shown == text


@pytest.mark.parametrize("text", ["안녕하세요, 세계!", "😀👩‍👩‍👧🇰🇷", "한👍글 é"])
@pytest.mark.parametrize("name", MADE)
def test_never_half_a_character(name: str, text: str) -> None:
    """A character of several tokens appears when its last one does."""
    tokenizer = MADE[name]
    detokenizer = Detokenizer(tokenizer)
    shown = [detokenizer.push((token_id,)) for token_id in tokenizer.encode(text)]
    assert "\ufffd" not in "".join(shown)
    assert "".join(shown) == text


def test_an_unfinished_character_waits_for_its_end() -> None:
    """The bytes of a character may come in any number of pushes; it shows with the last of them."""
    detokenizer = Detokenizer(ByteTokenizer())
    assert detokenizer.push("한".encode()[:2]) == ""
    assert detokenizer.push("한".encode()[2:]) == "한"


def test_broken_bytes_do_not_hold_back_the_rest() -> None:
    """A byte that can begin no character is replaced at once."""
    assert Detokenizer(ByteTokenizer()).push(b"a\xffb") == "a\ufffdb"


def test_control_tokens_do_not_show() -> None:
    """A sampled control token is no text."""
    tokenizer = ByteTokenizer(added=("<think>",))
    ids = tokenizer.encode("a<|im_start|>b<think>")
    assert Detokenizer(tokenizer).push(ids) == "ab<think>"


def test_memo_is_bounded() -> None:
    """Pieces are forgotten, least recently used first, and nothing changes but the time."""
    made = byte_level().to_str().encode()
    small = HfTokenizer(made, settings={}, memo_nbytes=2_000)
    for i in range(200):
        assert small.encode(f"the fox {i}") == MADE["byte_level"].encode(f"the fox {i}")
        assert small.memo_nbytes <= 2_000
    assert small.memo_nbytes > 1_000
    assert small.encode("x" * 10_000) == MADE["byte_level"].encode("x" * 10_000)


def write(folder: Path, **files: Any) -> Path:
    """A model folder with some JSON files."""
    for name, content in files.items():
        (folder / f"{name}.json").write_text(
            content if isinstance(content, str) else json.dumps(content), encoding="utf-8"
        )
    return folder


@pytest.mark.parametrize(
    ("files", "stops"),
    [
        ({}, set()),
        ({"config": {"eos_token_id": 7}}, {7}),
        ({"config": {"eos_token_id": 7}, "generation_config": {"eos_token_id": [8, 9]}}, {7, 8, 9}),
        ({"config": {"text_config": {"eos_token_id": [5]}}}, {5}),
        (
            {
                "config": {"eos_token_id": None},
                "tokenizer_config": {"eos_token": {"content": "<s>"}},
            },
            {0},
        ),
    ],
)
def test_stop_ids_of_a_folder(tmp_path: Path, files: dict[str, Any], stops: set[int]) -> None:
    """Every place where a model says how it ends its answers is read."""
    made = json.loads(byte_level().to_str())
    assert HfTokenizer.from_folder(write(tmp_path, tokenizer=made, **files)).stop_ids == stops


def test_turn_ends_stop_even_if_no_file_says_so() -> None:
    """A base model's end token is not the one its chat format uses."""
    made = byte_level()
    made.add_special_tokens([AddedToken("<|im_end|>", special=True)])
    tokenizer = HfTokenizer(made.to_str().encode(), settings={})
    assert tokenizer.stop_ids == {tokenizer.special_tokens["<|im_end|>"]}


def test_fingerprint_follows_the_files(tmp_path: Path) -> None:
    """Another file or another named token is another fingerprint; the same ones are the same."""
    made = byte_level().to_str().encode()
    one, same, named = (
        HfTokenizer(made, settings=s).fingerprint for s in ({}, {}, {"bos_token": "<s>"})
    )
    assert one == same
    assert len({one, named, HfTokenizer(made + b" ", settings={}).fingerprint}) == 3


@pytest.mark.parametrize(
    ("content", "error", "words"),
    [
        (None, ModelDamaged, "no tokenizer.json"),
        ("{", ModelDamaged, "not JSON"),
        ("[]", ModelDamaged, "not a JSON object"),
        ('{"model": {"type": "BPE"}}', ModelDamaged, "cannot be loaded"),
        (
            tokenizers.Tokenizer(models.WordPiece({"[UNK]": 0}, unk_token="[UNK]")).to_str(),
            ModelUnsupported,
            "decoder",
        ),
    ],
)
def test_broken_files_are_named(
    tmp_path: Path, content: str | None, error: type[Exception], words: str
) -> None:
    """A model that cannot be tokenized is refused at start, by the name of the file."""
    folder = tmp_path if content is None else write(tmp_path, tokenizer=content)
    with pytest.raises(error, match=words):
        HfTokenizer.from_folder(folder)
