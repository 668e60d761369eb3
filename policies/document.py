"""YAML text -> plain data that remembers the line of every key and value. Knows no schema.

The node tree is read instead of ruamel's objects: it has a mark for every key and every value,
keeps duplicate keys visible, and lets references be resolved in values only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from ruamel.yaml import YAML
from ruamel.yaml.constructor import SafeConstructor
from ruamel.yaml.error import MarkedYAMLError, StringMark, YAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from policies.errors import Problem
from policies.interpolate import InterpolationError, Interpolator

KeyPath: TypeAlias = tuple[str | int, ...]
"""Keys and list indexes from the root."""

_YAML_TAG: Final = "tag:yaml.org,2002:"
_TYPED: Final = frozenset({f"{_YAML_TAG}{name}" for name in ("null", "bool", "int", "float")})


@dataclass(frozen=True, slots=True)
class SourcePosition:
    """A place in the text; both count from 1."""

    line: int
    column: int


@dataclass(slots=True)
class Document:
    """The data of a policy file, with the place of each key and value.

    `data` is made of dict, list, str, int, float, bool and None. `keys` and `values` hold the
    places by path. `interpolated` holds the paths whose values came from elsewhere and must not be
    shown; `overridden` those whose values the command line decides. `problems` were found while
    reading; `broken` holds the paths where that left None.
    """

    file: str
    data: dict[str, Any] = field(default_factory=dict)
    keys: dict[KeyPath, SourcePosition] = field(default_factory=dict)
    values: dict[KeyPath, SourcePosition] = field(default_factory=dict)
    interpolated: set[KeyPath] = field(default_factory=set)
    overridden: set[KeyPath] = field(default_factory=set)
    broken: set[KeyPath] = field(default_factory=set)
    problems: list[Problem] = field(default_factory=list)

    def problem(
        self, path: KeyPath, message: str, *, at_key: bool = False, suggestion: str | None = None
    ) -> Problem:
        """A problem with a mark: the path's own, or that of the nearest thing around it that the
        file has."""
        if path in self.overridden:
            return Problem("command line", None, None, dotted(path), message, suggestion)
        marks = self.keys if at_key else self.values
        mark = marks.get(path)
        for length in range(len(path), 0, -1):
            mark = mark or self.keys.get(path[:length]) or self.values.get(path[:length])
        line, column = (mark.line, mark.column) if mark else (None, None)
        return Problem(self.file, line, column, dotted(path), message, suggestion)


def dotted(path: KeyPath) -> str:
    """`("dialects", 2, "match")` -> `dialects.2.match`."""
    return ".".join(map(str, path))


def parse_document(text: str, *, file: str, interpolator: Interpolator) -> Document:
    """Reads one YAML 1.2 document. Faults of the text are in `Document.problems`, never raised."""
    document = Document(file)
    yaml = YAML(typ="safe", pure=True)
    try:
        root = yaml.compose(text)
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line, column = (mark.line + 1, mark.column + 1) if mark else (None, None)
        document.problems.append(
            Problem(file, line, column, "", f"not valid YAML: {error.problem or error.context}")
        )
        return document
    except RecursionError:
        document.problems.append(Problem(file, None, None, "", "not valid YAML: nested too deeply"))
        return document
    except YAMLError as error:
        reason = str(error).splitlines()[0]
        document.problems.append(Problem(file, None, None, "", f"not valid YAML: {reason}"))
        return document
    if root is None:
        return document
    data = _Reader(document, interpolator, yaml.constructor).read(root, ())
    if isinstance(data, Mapping):
        document.data = dict(data)
    elif data is not None:
        document.problems.append(
            document.problem((), "must be a mapping of sections such as server: and caching:")
        )
    return document


@dataclass(slots=True)
class _Reader:
    """Walks the node tree once and fills the document."""

    document: Document
    interpolator: Interpolator
    constructor: SafeConstructor
    open_nodes: set[int] = field(default_factory=set)

    def read(self, node: Node, path: KeyPath) -> Any:
        self.document.values[path] = _mark(node.start_mark)
        if id(node) in self.open_nodes:
            return self._broken(path, "refers to itself")
        if not str(node.tag).startswith(_YAML_TAG):
            return self._broken(path, f"tag {node.tag} has no meaning here")
        self.open_nodes.add(id(node))
        try:
            if isinstance(node, MappingNode):
                return self._mapping(node, path)
            if isinstance(node, SequenceNode):
                return [self.read(item, (*path, index)) for index, item in enumerate(node.value)]
            assert isinstance(node, ScalarNode)
            return self._scalar(node, path)
        finally:
            self.open_nodes.discard(id(node))

    def _mapping(self, node: MappingNode, path: KeyPath) -> dict[str, Any]:
        data: dict[str, Any] = {}
        for key_node, value_node in node.value:
            if not isinstance(key_node, ScalarNode):
                self._broken(path, "keys must be plain names")
                continue
            key = (*path, str(key_node.value))
            if key_node.value in data:
                first = self.document.keys[key].line
                mark = _mark(key_node.start_mark)
                message = f"duplicate key, first given on line {first}"
                self.document.problems.append(
                    Problem(self.document.file, mark.line, mark.column, dotted(key), message)
                )
                continue
            self.document.keys[key] = _mark(key_node.start_mark)
            data[key_node.value] = self.read(value_node, key)
        return data

    def _scalar(self, node: ScalarNode, path: KeyPath) -> Any:
        if node.tag in _TYPED:
            try:
                return self.constructor.construct_object(node)
            except ValueError:
                return self._broken(path, "is a number too long to read")
        text = str(node.value)
        try:
            resolved = self.interpolator.resolve(text)
        except InterpolationError as error:
            return self._broken(path, str(error))
        if resolved != text:
            self.document.interpolated.add(path)
        return resolved

    def _broken(self, path: KeyPath, message: str) -> None:
        self.document.broken.add(path)
        self.document.problems.append(self.document.problem(path, message))


def _mark(mark: StringMark) -> SourcePosition:
    return SourcePosition(mark.line + 1, mark.column + 1)
