"""Write the generated part of docs/policy.md and docs/metrics.md from the code:

`python -m tools.reference`.

A generated part stands between two HTML comments; the prose around it is written by hand and kept.
"""

from __future__ import annotations

import re
import typing
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from gateway.operate.metrics import MetricDescription, Metrics
from policies.keys import without_default
from policies.load import load_policy
from policies.schema import Policy
from policies.sections import Section
from policies.size import Size

ROOT = Path(__file__).parents[1]
MIB = 1024**2
BEGIN, END = "<!-- generated: make docs -->", "<!-- end of the generated part -->"


@dataclass(frozen=True, slots=True)
class Key:
    """One key of the policy file. `path` is dotted, `[]` stands for each item of a list."""

    path: str
    default: str
    choices: tuple[str, ...]
    meaning: str


def policy_keys(
    section: type[Section] = Policy, values: Mapping[str, Any] | None = None, prefix: str = ""
) -> Iterator[Key]:
    """Every key below a section, in the order of the schema, with the defaults of the shipped
    policy."""
    if values is None:
        values = (
            load_policy(None, {}).model_dump(mode="json")
            if section is Policy
            else section().model_dump(mode="json", exclude=without_default(section))
        )
    for name, field in section.model_fields.items():
        inner, is_list = _section_in(field.annotation)
        path = f"{prefix}{name}{'[]' if is_list else ''}"
        if inner is None:
            yield Key(
                path, _shown(values.get(name)), _choices(field.annotation), field.description or ""
            )
        else:
            yield from policy_keys(inner, None if is_list else values[name], f"{path}.")


def policy_tables(keys: Iterable[Key]) -> str:
    """One table per top-level section."""
    sections: dict[str, list[Key]] = {}
    for key in keys:
        sections.setdefault(re.split(r"[.\[]", key.path)[0], []).append(key)
    lines = []
    for name, rows in sections.items():
        described = Policy.model_fields[name].description
        lines += [
            f"## `{name}`",
            "",
            described or "",
            "",
            "| key | default | meaning |",
            "| --- | --- | --- |",
        ]
        for key in rows:
            choices = (
                f" One of {', '.join(f'`{choice}`' for choice in key.choices)}."
                if key.choices
                else ""
            )
            lines.append(f"| `{key.path}` | {key.default} | {_cell(key.meaning)}{choices} |")
        lines.append("")
    return "\n".join(lines)


def metric_table(metrics: Iterable[MetricDescription]) -> str:
    """One row per metric, named as scraped."""
    lines = ["| metric | kind | labels | meaning |", "| --- | --- | --- | --- |"]
    for metric in metrics:
        labels = ", ".join(f"`{label}`" for label in metric.labels)
        lines.append(f"| `{metric.name}` | {metric.kind} | {labels} | {_cell(metric.help)} |")
    return "\n".join([*lines, ""])


def with_generated(text: str, generated: str) -> str:
    """The document with its generated part replaced. Raises ValueError where the two comments are
    missing."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the document lacks {BEGIN!r} or {END!r}")
    return f"{before}{BEGIN}\n\n{generated}\n{END}{after}"


def documents() -> dict[Path, str]:
    """What the generated documents should hold now."""
    generated = {
        "policy.md": policy_tables(policy_keys()),
        "metrics.md": metric_table(Metrics().describe()),
    }
    paths = {ROOT / "docs" / name: part for name, part in generated.items()}
    return {
        path: with_generated(path.read_text(encoding="utf-8"), part) for path, part in paths.items()
    }


def _section_in(annotation: object) -> tuple[type[Section] | None, bool]:
    """The section a field holds, and whether it holds a list of them."""
    for candidate in (annotation, *typing.get_args(annotation)):
        if isinstance(candidate, type) and issubclass(candidate, Section):
            return candidate, candidate is not annotation
    return None, False


def _choices(annotation: object) -> tuple[str, ...]:
    if typing.get_origin(annotation) is Literal:
        return tuple(str(value) for value in typing.get_args(annotation))
    return tuple(choice for part in typing.get_args(annotation) for choice in _choices(part))


def _shown(value: object) -> str:
    """A default as it would stand in the file."""
    if value is None or value == [] or value == {}:
        return ""
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, int) and value and value % MIB == 0:
        return f"`{Size(value)}`"
    if isinstance(value, list):
        return f"`[{', '.join(map(str, value))}]`"
    if isinstance(value, dict):
        return f"`{{{', '.join(f'{name}: {item}' for name, item in value.items())}}}`"
    return f"`{value}`"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def main() -> None:
    for path, text in documents().items():
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
