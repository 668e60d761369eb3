"""Under which ids the model list shows the models. Knows no provider."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gateway.backends.base import ModelInfo

_PATTERN_CHARACTERS = frozenset("*?[")


def listed(models: Sequence[ModelInfo], aliases: Sequence[str]) -> Iterator[tuple[str, ModelInfo]]:
    """Every model under its own name, then the first one under every alias that is a name and not a pattern; no name twice."""
    names = {model.name for model in models}
    yield from ((model.name, model) for model in models)
    if models:
        plain = (alias for alias in dict.fromkeys(aliases) if alias not in names and not _PATTERN_CHARACTERS & set(alias))
        yield from ((alias, models[0]) for alias in plain)
