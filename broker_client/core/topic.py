"""Topic binding keys as a trie of words: `*` is one word, `#` is none or more."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

D = TypeVar("D", bound=Hashable)


def words(key: str) -> list[str]:
    """The words of a key; RabbitMQ: the empty key has none, `.` has two empty ones."""
    return key.split(".") if key else []


class _Node(Generic[D]):
    __slots__ = ("children", "destinations")

    def __init__(self) -> None:
        self.children: dict[str, _Node[D]] = {}
        self.destinations: dict[D, int] = {}  # with the number of bindings that lead there


class TopicTrie(Generic[D]):
    """Finds the destinations of a routing key."""

    __slots__ = ("_root",)

    def __init__(self) -> None:
        self._root: _Node[D] = _Node()

    def add(self, binding_key: str, destination: D) -> None:
        """Let `binding_key` lead to `destination`; counts, so that it may be added twice."""
        node = self._root
        for word in words(binding_key):
            child = node.children.get(word)
            if child is None:
                child = node.children[word] = _Node()
            node = child
        node.destinations[destination] = node.destinations.get(destination, 0) + 1

    def remove(self, binding_key: str, destination: D) -> None:
        """Undo one `add`, and prune the branch when nothing is left on it.

        Raises:
            KeyError: it was not added.
        """
        path = [self._root]
        keys = words(binding_key)
        for word in keys:
            path.append(path[-1].children[word])
        count = path[-1].destinations[destination] - 1
        if count:
            path[-1].destinations[destination] = count
            return
        del path[-1].destinations[destination]
        for word, parent, node in zip(reversed(keys), path[-2::-1], reversed(path), strict=False):
            if node.children or node.destinations:
                break
            del parent.children[word]

    def match(self, routing_key: str) -> dict[D, None]:
        """The destinations of `routing_key`, each once."""
        keys = words(routing_key)
        end = len(keys)
        found: dict[D, None] = {}
        seen: set[tuple[int, int]] = set()  # several `#` reach one place on many ways
        todo: list[tuple[_Node[D], int]] = [(self._root, 0)]
        while todo:
            node, at = todo.pop()
            if (id(node), at) in seen:
                continue
            seen.add((id(node), at))
            children = node.children
            if at == end:
                found.update(dict.fromkeys(node.destinations))
            elif children:
                if (child := children.get(keys[at])) is not None and keys[at] not in ("*", "#"):
                    todo.append((child, at + 1))
                if (child := children.get("*")) is not None:
                    todo.append((child, at + 1))
            if (child := children.get("#")) is not None:
                todo.extend((child, later) for later in range(at, end + 1))
        return found
