"""A configuration as written: plain data that remembers where each value stands."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, cast

import yaml
from pydantic import BaseModel, SecretStr

from broker_client.config.problems import Key, dotted
from broker_client.errors import Problem

FREE_FORM = frozenset({"arguments", "headers"})
"""Keys whose content belongs to the broker or the user: it has no model that fixes its types."""


_MAX_DEPTH = 64
_MAX_VALUES = 100_000
"""Far more than any configuration has, and far less than what takes long: nested aliases of a few
lines stand for thousands of millions of values."""


class Spot(NamedTuple):
    """Where a value stands."""

    line: int | None = None
    path: str | None = None
    """The printed path, where it is not just the parent's path and the key."""


class Section(dict[str, Any]):
    """A mapping with the spots of its keys."""

    def __init__(self, content: Mapping[str, Any] | None = None) -> None:
        super().__init__(content or {})
        self.spots: dict[Key, Spot] = dict(getattr(content, "spots", {}))

    def put(self, key: str, value: object, spot: Spot) -> None:
        self[key] = value
        self.spots[key] = spot

    def spot(self, key: str) -> Spot:
        return self.spots.get(key, Spot())


class Items(list[Any]):
    """A list with the spots of its elements."""

    def __init__(self) -> None:
        super().__init__()
        self.spots: dict[Key, Spot] = {}

    def add(self, value: object, spot: Spot) -> None:
        self.spots[len(self)] = spot
        self.append(value)


def locate(tree: object, path: Sequence[Key]) -> tuple[str, int | None]:
    """The printed path of a value of `tree`, and its line or the nearest one above it."""
    shown, line, here = "", None, tree
    for key in path:
        spot = here.spots.get(key, Spot()) if isinstance(here, Section | Items) else Spot()
        line = spot.line or line
        shown = spot.path if spot.path is not None else joined(shown, key)
        here = _step(here, key)
    return shown, line


def joined(path: str, key: Key) -> str:
    return dotted((path, key)) if path else dotted((key,))


def _step(here: object, key: Key) -> object:
    if isinstance(here, Section):
        return here.get(str(key))
    if isinstance(here, Items) and isinstance(key, int) and key < len(here):
        return here[key]
    return None


def merged(value: Section, defaults: Section, path: str) -> Section:
    """`value` filled up from `defaults`, section by section. Lists and values replace.

    Args:
        value: what the user wrote; null counts as not written.
        defaults: what fills the gaps.
        path: printed path of `defaults`, for complaints about what came from there.
    """
    result = Section()
    for key in [*value, *(key for key in defaults if key not in value)]:
        mine, theirs = value.get(key), defaults.get(key)
        if isinstance(mine, Section) and isinstance(theirs, Section):
            result.put(key, merged(mine, theirs, joined(path, key)), value.spot(key))
        elif mine is not None or (key in value and key not in defaults):
            result.put(key, mine, value.spot(key))
        else:
            spot = defaults.spot(key)
            result.put(key, theirs, spot._replace(path=spot.path or joined(path, key)))
    return result


def stated(section: Section) -> set[str]:
    """The keys of `section` that have a value; an empty one counts as not written."""
    return {key for key, value in section.items() if value is not None}


# --------------------------------------------------------------------------- environment

_START = re.compile(r"\$\$|\$\{([A-Za-z_][A-Za-z0-9_]*)?(\}|:-)?")
_NESTED = re.compile(r"\$\$|\$\{|\}")


def expanded(text: str, environ: Mapping[str, str]) -> tuple[str, str | None]:
    """`text` with ``${NAME}`` and ``${NAME:-default}`` filled in, and what is wrong with it.

    A default may hold variables in its turn; it is looked at where it is needed only.
    """
    done, complaint = "", None
    while (match := _START.search(text)) is not None:
        done, text, begin = done + text[: match.start()], text[match.end() :], match[0]
        name = match[1]
        if begin == "$$":
            done += "$"
        elif name is not None and match[2] == "}":
            if name not in environ:
                complaint = complaint or (
                    f"environment variable {name} is not set; set it or write ${{{name}:-default}}"
                )
            done += environ.get(name, "")
        elif name is not None and match[2] == ":-" and (end := _end_of_default(text)) >= 0:
            default, text = text[:end], text[end + 1 :]
            value = environ.get(name)  # as in a shell, an empty variable counts as unset
            if not value:
                value, wrong = expanded(default, environ)
                complaint = complaint or wrong
            done += value
        else:
            complaint = complaint or (
                "'${' does not begin a variable; write ${NAME}, ${NAME:-default} or $${"
            )
            done += begin
    return done + text, complaint


def _end_of_default(text: str) -> int:
    """Where the ``}`` stands that ends a variable whose default `text` begins with, or -1."""
    depth = 0
    for match in _NESTED.finditer(text):
        if match[0] == "}":
            if not depth:
                return match.start()
            depth -= 1
        elif match[0] == "${":
            depth += 1
            if depth > _MAX_DEPTH:
                break
    return -1


# --------------------------------------------------------------------------- reading


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
        if self._depth > _MAX_DEPTH:
            raise _too_deep(self.peek_event().start_mark)  # type: ignore[no-untyped-call]
        node = super().compose_node(parent, index)
        self._depth -= 1
        if node is not None and id(node) not in self._extents:
            self._extents[id(node)] = depth, values = self._extent(node)
            if depth > _MAX_DEPTH:
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
    text = f"nested more than {_MAX_DEPTH} levels deep, its aliases filled in"
    return yaml.composer.ComposerError(None, None, text, mark)


class Reader:
    """Builds the tree of one source and collects what is wrong with it."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self.problems: list[Problem] = []
        self._environ = environ
        self._open_nodes: set[int] = set()

    def from_yaml(self, text: str) -> Section:
        """The tree of a YAML (or JSON) document; an empty one has no keys."""
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
            self.problems.append(Problem("", message, line=line))
        except yaml.YAMLError:
            self.problems.append(Problem("", "not valid YAML: a character is not allowed"))
        finally:
            if loader is not None:
                loader.dispose()
        return Section()

    def from_mapping(self, value: Mapping[str, Any]) -> Section:
        """The tree of a mapping made in Python; it has no lines."""
        return cast(Section, self._plain(value, ()))

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
        text = self._expand(value, path, _line(node))
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
            self.problems.append(Problem(dotted(path), message, line=line))
            return None

    def _plain(self, value: object, path: tuple[Key, ...]) -> object:
        if isinstance(value, BaseModel | SecretStr):
            return value
        if len(path) > _MAX_DEPTH:
            message = f"is nested more than {_MAX_DEPTH} levels deep"
            self.problems.append(Problem(dotted(path[:4]), message))
            return None
        if isinstance(value, Mapping):
            section = Section()
            for key, each in value.items():
                section.put(str(key), self._plain(each, (*path, str(key))), Spot())
            return section
        if isinstance(value, list | tuple):
            items = Items()
            for index, each in enumerate(value):
                items.add(self._plain(each, (*path, index)), Spot())
            return items
        if isinstance(value, str) and "$" in value:
            return self._expand(value, path, None)
        return value

    def _expand(self, text: str, path: tuple[Key, ...], line: int | None) -> str:
        result, complaint = expanded(text, self._environ)
        if complaint is not None:
            self.problems.append(Problem(dotted(path), complaint, line=line))
        return result

    def _complain(self, path: str, node: yaml.Node, message: str) -> None:
        self.problems.append(Problem(path, message, line=_line(node)))


def _line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1
