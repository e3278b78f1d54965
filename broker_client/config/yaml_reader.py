"""Reads YAML into the tree of a configuration. Imported when there is YAML to read."""

from __future__ import annotations

import re
from typing import Any, cast

import yaml

from broker_client.config.problems import Key, dotted
from broker_client.config.tree import FREE_FORM, MAX_DEPTH, Items, Reader, Section, Spot
from broker_client.errors import Problem

_MAX_VALUES = 100_000
"""Far more than any configuration has, and far less than what takes long: nested aliases of a few
lines stand for thousands of millions of values."""

_YAML_ADVICE = (  # what PyYAML says, and what to do
    (r"character '\\t'", "indent with spaces, not with tabs"),
    (
        r"expected alphabetic or numeric|character '[@`%]' that cannot start",
        "put a value that begins with * & @ ` or % in quotes",
    ),
    (
        r"mapping values are not allowed",
        "the line is indented deeper than its neighbours, the one above lacks its ':', "
        "or a text with ': ' lacks its quotes",
    ),
    (r"could not find expected ':'", "a key lacks its ':', or a quote is not closed"),
    (
        r"expected (<block end>|'<document start>')",
        "the line is not indented like the lines it belongs to",
    ),
    (
        r"expected ',' or",
        "a bracket is not closed, a ',' is missing, or a text with brackets lacks its quotes",
    ),
    (r"unexpected end of stream", "a quote is not closed"),
)


def _yaml_advice(error: yaml.MarkedYAMLError, line: str) -> str:
    """What to do about `error`, which came up in `line`."""
    if "${" in line:
        return "; between { } or [ ], put ${NAME} in quotes"
    said = str(error.problem)
    return next((f"; {advice}" for words, advice in _YAML_ADVICE if re.search(words, said)), "")


class _Loader(yaml.SafeLoader):
    """Refuses what is nested too deeply, or becomes too large once its aliases are filled in."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._depth = 0
        self._extents: dict[int, tuple[int, int]] = {}
        """By node: how deep it is, and how many values it stands for, aliases filled in."""

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise _too_deep(self.peek_event().start_mark)  # type: ignore[no-untyped-call]
        node = super().compose_node(parent, index)
        self._depth -= 1
        if node is not None and id(node) not in self._extents:
            self._extents[id(node)] = depth, values = self._extent(node)
            if depth > MAX_DEPTH:
                raise _too_deep(node.start_mark)
            if values > _MAX_VALUES:
                text = f"more than {_MAX_VALUES:,} values once its aliases are filled in"
                raise yaml.composer.ComposerError(None, None, text, node.start_mark)
        return node

    def _extent(self, node: yaml.Node) -> tuple[int, int]:
        children: list[yaml.Node] = []
        if isinstance(node, yaml.MappingNode):
            children = [each for pair in node.value for each in pair]
        elif isinstance(node, yaml.SequenceNode):
            children = node.value
        # A node that contains itself is not complete yet; the reader complains about it.
        extents = [self._extents.get(id(child), (0, 0)) for child in children]
        depth = 1 + max((depth for depth, _ in extents), default=0)
        return depth, 1 + sum(values for _, values in extents)


def _too_deep(mark: yaml.Mark) -> yaml.MarkedYAMLError:
    text = f"nested more than {MAX_DEPTH} levels deep, its aliases filled in"
    return yaml.composer.ComposerError(None, None, text, mark)


class YamlReader:
    """Builds the tree of one YAML (or JSON) document; `reader` expands and collects problems."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._open_nodes: set[int] = set()

    def tree(self, text: str) -> Section:
        """The tree of `text`; an empty one has no keys."""
        loader: yaml.SafeLoader | None = None
        try:
            loader = _Loader(text)
            node = loader.get_single_node()
            if node is None:
                return Section()
            if not isinstance(node, yaml.MappingNode):
                self._complain("", node, "must be a mapping with the key 'vhosts'")
                return Section()
            return cast(Section, self._value(loader, node, ()))
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            line = mark.line + 1 if mark else None
            here = "".join(text.splitlines()[mark.line : mark.line + 1]) if mark else ""
            message = f"not valid YAML: {error.problem}{_yaml_advice(error, here)}"
            self._reader.problems.append(Problem("", message, line=line))
        except yaml.YAMLError:
            self._reader.problems.append(Problem("", "not valid YAML: a character is not allowed"))
        finally:
            if loader is not None:
                loader.dispose()
        return Section()

    def _value(self, loader: yaml.SafeLoader, node: yaml.Node, path: tuple[Key, ...]) -> object:
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(loader, node, path)
        if id(node) in self._open_nodes:
            self._complain(dotted(path), node, "an alias contains itself")
            return None
        self._open_nodes.add(id(node))
        try:
            if isinstance(node, yaml.MappingNode):
                return self._mapping(loader, node, path)
            items = Items()
            for index, child in enumerate(node.value):
                items.add(self._value(loader, child, (*path, index)), Spot(_line(child)))
            return items
        finally:
            self._open_nodes.discard(id(node))

    def _mapping(
        self, loader: yaml.SafeLoader, node: yaml.MappingNode, path: tuple[Key, ...]
    ) -> Section:
        first_lines: dict[str, int] = {}
        for key_node, _ in node.value:
            name = str(key_node.value)
            if name in first_lines and name != "<<":
                message = f"duplicate key, first on line {first_lines[name]}"
                self._complain(dotted((*path, name)), key_node, message)
            first_lines.setdefault(name, _line(key_node))
        loader.flatten_mapping(node)
        section = Section()
        for key_node, value_node in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                self._complain(dotted(path), key_node, "a key must be text")
                continue
            # The text as written: YAML 1.1 would make `on`, `no` or `1` something else.
            key = key_node.value
            value = self._value(loader, value_node, (*path, key))
            section.put(key, value, Spot(_line(key_node)))
        return section

    def _scalar(
        self, loader: yaml.SafeLoader, node: yaml.ScalarNode, path: tuple[Key, ...]
    ) -> object:
        value = self._constructed(loader, node, path, _line(node))
        if not isinstance(value, str) or "$" not in value:
            return value
        text = self._reader.expand(value, path, _line(node))
        if node.style is None and text != value and FREE_FORM.intersection(path):
            # No model will turn "10" into a number here, so YAML's own rules do.
            tag = loader.resolve(yaml.ScalarNode, text, (True, False))  # type: ignore[no-untyped-call]
            return self._constructed(loader, yaml.ScalarNode(tag, text), path, _line(node))
        return text

    def _constructed(
        self, loader: yaml.SafeLoader, node: yaml.ScalarNode, path: tuple[Key, ...], line: int
    ) -> object:
        try:
            return loader.construct_object(node, deep=True)
        except (ValueError, LookupError, AttributeError):  # what PyYAML lets through
            kind = str(node.tag).rpartition(":")[2]
            message = f"is not a valid {kind}, as which YAML reads it; put a text in quotes"
            self._reader.problems.append(Problem(dotted(path), message, line=line))
            return None

    def _complain(self, path: str, node: yaml.Node, message: str) -> None:
        self._reader.problems.append(Problem(path, message, line=_line(node)))


def _line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1
