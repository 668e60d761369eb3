"""Every error the engine raises, named for the caller's situation.

EngineError
├── ModelError            the model cannot be used at all: said at start
│   ├── ModelNotFound         nothing at the given source
│   ├── ModelDamaged          truncated, wrong checksum, missing tensors
│   └── ModelUnsupported      a layer type, attention argument or file we do not implement
├── BadPrompt             the chat template refused the messages: the client's mistake
├── BadFormat             what the answer is to look like is no grammar, or none that can be kept
│   └── BadTools              the same of tools that have to be called
├── ContextExceeded       the prompt leaves no room for one token
└── Overloaded            a bounded queue is full: try again later
"""

from __future__ import annotations


class EngineError(Exception):
    """Base of all errors of the package. Messages never hold prompt text."""


class ModelError(EngineError):
    """The model cannot be used."""


class ModelNotFound(ModelError):
    """Nothing usable at the given source."""


class ModelDamaged(ModelError):
    """The files are there but truncated, altered or incomplete."""


class ModelUnsupported(ModelError):
    """The model needs something this engine does not implement; the message names it."""


class BadPrompt(EngineError):
    """The chat template refused the messages."""


class BadFormat(EngineError):
    """The output format is broken, too large or needs what the grammar compiler hasn't; the message
    says what."""


class BadTools(BadFormat):
    """The tools that the answer has to choose from make no grammar; the message says why not."""


class ContextExceeded(EngineError):
    """The prompt leaves no room for a single generated token."""

    def __init__(self, num_prompt: int, limit: int) -> None:
        super().__init__(f"prompt is too long: {num_prompt} tokens > {limit} maximum")
        self.num_prompt = num_prompt
        self.limit = limit


class Overloaded(EngineError):
    """A bounded queue is full."""
