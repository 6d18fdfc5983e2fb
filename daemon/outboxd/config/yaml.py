"""Reads YAML 1.2 into plain values that know their line and column; strict where YAML is a trap.

Scalars follow the 1.2 core schema, without numbers that start with a zero: `on`, `no`, `012`, `12:30` are strings.
Duplicate keys are errors, aliases are bounded, only `!!str`, `!!int` and the like are accepted as tags.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode
from ruamel.yaml.reader import ReaderError

from outboxd.config.problems import KeyPath, Place, Problem

__all__ = ["Document", "Scalar", "Value", "read_yaml", "scalar_of", "scalar_text"]

Scalar: TypeAlias = str | int | float | bool | None
Value: TypeAlias = "Scalar | list[Value] | dict[str, Value]"
"""What a document is made of."""

_MAX_NODES: Final = 100_000
"""The most nodes that a document may have once its aliases are followed: beyond that it is an alias bomb."""
_MAX_DEPTH: Final = 64
_INTEGER: Final = re.compile(r"[-+]?(0|[1-9][0-9]*)")
_FLOAT: Final = re.compile(r"[-+]?((0|[1-9][0-9]*)(\.[0-9]*)?|\.[0-9]+)([eE][-+]?[0-9]+)?")
_WORDS: Final[Mapping[str, Scalar]] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
_TAGS: Final[Mapping[str, Callable[[str], Scalar]]] = {
    "tag:yaml.org,2002:str": str,
    "tag:yaml.org,2002:int": int,
    "tag:yaml.org,2002:float": float,
    "tag:yaml.org,2002:null": lambda _: None,
    "tag:yaml.org,2002:bool": lambda text: _WORDS[text],
}
_TEXT: Final = "tag:yaml.org,2002:str"
_RESOLVED: Final = frozenset({*_TAGS, "tag:yaml.org,2002:timestamp", "tag:yaml.org,2002:merge"})
"""Tags that the parser gives plain scalars by itself; what they mean is decided here."""
_QUOTED: Final = re.compile(r"'([^']*)'")
_COLLECTIONS: Final = frozenset({"tag:yaml.org,2002:map", "tag:yaml.org,2002:seq"})
_MERGE: Final = "<<"


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """One file: its value (None when there are problems), the places of values and of keys by path, problems."""

    value: Value = None
    values: dict[KeyPath, Place] = field(default_factory=dict)
    keys: dict[KeyPath, Place] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)


def scalar_of(text: str) -> Scalar:
    """What a plain, unquoted scalar means in YAML 1.2's core schema, less surprising numbers."""
    if text in _WORDS:
        return _WORDS[text]
    if _INTEGER.fullmatch(text) and len(text) < 64:
        return int(text)
    if _FLOAT.fullmatch(text) and len(text) < 64:
        return float(text)
    return text


def read_yaml(text: str, file: str) -> Document:
    """The document in ``text``; ``file`` is what its places say. Never raises: what is wrong is in its problems."""
    document = Document()
    try:
        node = _compose(text)
    except (YAMLError, RecursionError, ValueError) as error:
        document.problems.append(_syntax_problem(error, file))
        return document
    if node is None or (isinstance(node, ScalarNode) and node.style is None and scalar_of(str(node.value)) is None):
        document.problems.append(
            Problem(
                place=Place(file=file),
                code="file_empty",
                message="the file has no content",
                suggestion="write a configuration into it, or remove the file",
            )
        )
        return document
    size = _size(node)
    if size is None or size > _MAX_NODES:
        what = (
            "an alias that contains itself" if size is None else f"aliases that unfold to more than {_MAX_NODES} values"
        )
        document.problems.append(
            Problem(
                place=_place(node, file),
                code="alias_unbounded",
                message=f"the file has {what}",
                suggestion="use fewer levels of aliases",
            )
        )
        return document
    value = _Builder(file, document).build(node, ())
    return Document(value=value, values=document.values, keys=document.keys, problems=document.problems)


def _compose(text: str) -> Node | None:
    reader = YAML(typ="rt", pure=True)
    reader.composer.warn_double_anchors = False  # YAML allows an anchor's name to be used again
    node: Node | None = reader.compose(text)
    return node


def _syntax_problem(error: Exception, file: str) -> Problem:
    """The parser's own words without its excerpt of the file: that may hold a password."""
    place = Place(file=file)
    message = "the file is nested too deeply" if isinstance(error, RecursionError) else "the file is not YAML"
    if isinstance(error, MarkedYAMLError):
        mark = error.problem_mark or error.context_mark
        if mark is not None:
            place = Place(file=file, line=mark.line + 1, column=mark.column + 1)
        words = _QUOTED.sub(_without_word, str(error.problem or error.context))
        message = f"the file is not YAML: {words}"
        if "expected a single document" in str(error.context):
            return Problem(
                place=place,
                code="several_documents",
                message="the file holds more than one document",
                suggestion="give each document a file of its own in a folder, or remove the line with ---",
            )
    elif isinstance(error, ReaderError):
        message = "the file holds a character that YAML does not allow"
    return Problem(
        place=place,
        code="yaml_invalid",
        message=message,
        suggestion="look at indentation, quotes and colons near here; in {...} and [...] a placeholder needs quotes",
    )


def _without_word(quoted: re.Match[str]) -> str:
    """The parser's tokens stay; a word may be an unquoted password that begins with a special character."""
    return quoted[0] if quoted[1].startswith("<") or not re.search(r"\w{2,}", quoted[1]) else "..."


def _size(root: Node) -> int | None:
    """How many nodes the document has with its aliases followed; None when one contains itself."""
    sizes: dict[int, int] = {}
    open_nodes: set[int] = set()
    stack: list[tuple[Node, bool]] = [(root, False)]
    while stack:
        node, is_done = stack.pop()
        if is_done:
            open_nodes.discard(id(node))
            sizes[id(node)] = 1 + sum(sizes[id(child)] for child in _children(node))
        elif id(node) in open_nodes:
            return None
        elif id(node) not in sizes:
            open_nodes.add(id(node))
            stack.append((node, True))
            stack += [(child, False) for child in _children(node) if id(child) not in sizes]
    return sizes[id(root)]


def _children(node: Node) -> list[Node]:
    if isinstance(node, MappingNode):
        return [child for pair in node.value for child in pair]
    return list(node.value) if isinstance(node, SequenceNode) else []


def _place(node: Node, file: str) -> Place:
    return Place(file=file, line=node.start_mark.line + 1, column=node.start_mark.column + 1)


class _Builder:
    """Makes plain values of nodes, and notes places and problems on the way."""

    def __init__(self, file: str, document: Document) -> None:
        self._file = file
        self._document = document

    def build(self, node: Node, path: KeyPath) -> Value:
        self._document.values[path] = _place(node, self._file)
        if len(path) > _MAX_DEPTH:
            self._problem(node, path, "yaml_invalid", "the file is nested too deeply", "flatten this part of the file")
            return None
        if not isinstance(node, ScalarNode) and str(node.tag) not in _COLLECTIONS:
            self._problem(node, path, "wrong_tag", "the tag does not fit this value", "remove the tag")
        if isinstance(node, MappingNode):
            return self._mapping(node, path)
        if isinstance(node, SequenceNode):
            return [self.build(child, (*path, index)) for index, child in enumerate(node.value)]
        assert isinstance(node, ScalarNode)
        return self._scalar(node, path)

    def _mapping(self, node: MappingNode, path: KeyPath) -> Value:
        built: dict[str, Value] = {}
        for key, (key_node, value_node) in self._pairs(node, path).items():
            self._document.keys[*path, key] = _place(key_node, self._file)
            built[key] = self.build(value_node, (*path, key))
        return built

    def _pairs(self, node: MappingNode, path: KeyPath) -> dict[str, tuple[Node, Node]]:
        """The mapping's own keys, then those that `<<` adds: own keys win, then the first merged mapping."""
        own: dict[str, tuple[Node, Node]] = {}
        merged: list[Node] = []
        for key_node, value_node in node.value:
            if not isinstance(key_node, ScalarNode):
                self._problem(key_node, path, "wrong_key", "a key must be a text", "write a plain name")
            elif key_node.value == _MERGE and key_node.style is None:
                merged += value_node.value if isinstance(value_node, SequenceNode) else [value_node]
            elif key_node.value in own:
                first = _place(own[key_node.value][0], self._file)
                self._problem(
                    key_node,
                    (*path, key_node.value),
                    "duplicate_key",
                    f"the key stands here twice, first in line {first.line}, column {first.column}",
                    "keep one of them",
                )
            else:
                own[key_node.value] = (key_node, value_node)
        for source in merged:
            if isinstance(source, MappingNode):
                own = {**self._pairs(source, path), **own}
            else:
                self._problem(source, path, "wrong_merge", "`<<` takes a mapping", "merge an alias of a mapping")
        return own

    def _scalar(self, node: ScalarNode, path: KeyPath) -> Scalar:
        text, tag, is_plain = str(node.value), str(node.tag), node.style is None
        if is_plain and tag in _RESOLVED:
            meant = scalar_of(text)
            return text if tag == _TEXT else meant  # a text that looks like a number has a written `!!str`
        try:
            return _TAGS[tag](text)
        except (KeyError, ValueError):
            self._problem(node, path, "wrong_tag", "the tag does not fit this value", "remove the tag")
            return None

    def _problem(self, node: Node, path: KeyPath, code: str, message: str, suggestion: str) -> None:
        place = _place(node, self._file)
        problem = Problem(place=place, code=code, message=message, suggestion=suggestion, path=path)
        self._document.problems.append(problem)


def scalar_text(text: str, key: str) -> str | None:
    """The text of a top-level key of a YAML file, as it is written there; None when there is no such scalar."""
    try:
        node = _compose(text)
    except (YAMLError, RecursionError, ValueError):
        return None
    if not isinstance(node, MappingNode):
        return None
    for key_node, value_node in node.value:
        if isinstance(key_node, ScalarNode) and key_node.value == key and isinstance(value_node, ScalarNode):
            return str(value_node.value)
    return None
