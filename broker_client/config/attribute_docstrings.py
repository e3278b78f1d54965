"""The texts under the fields of a model: what the key of each is for.

Read from the source when somebody asks for the schema. To have pydantic do it
(`use_attribute_docstrings`) would cost a quarter of the package's import.
"""

from __future__ import annotations

import ast
import inspect
import textwrap


def attribute_docstrings(cls: type) -> dict[str, str]:
    """The text under each attribute of `cls` and of its bases, by the attribute's name."""
    found: dict[str, str] = {}
    for each in reversed(cls.__mro__):
        if each.__module__.startswith("broker_client."):
            found |= _own(each)
    return found


def _own(cls: type) -> dict[str, str]:
    (tree,) = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
    assert isinstance(tree, ast.ClassDef), "the source of a class"
    found = {}
    for attribute, text in zip(tree.body, tree.body[1:], strict=False):
        match attribute, text:
            case (
                ast.AnnAssign(target=ast.Name(id=name)),
                ast.Expr(value=ast.Constant(value=str(docstring))),
            ):
                found[name] = inspect.cleandoc(docstring)
    return found
