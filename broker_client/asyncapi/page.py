"""An AsyncAPI document as one static page: no script, and nothing from elsewhere."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from html import escape
from typing import Any

Object = Mapping[str, Any]

_STYLE = """
:root { color-scheme: light dark; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
h1, h2, h3 { line-height: 1.2; }
h3 { margin-top: 2.5rem; border-top: 1px solid #8884; padding-top: 1rem; }
table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; vertical-align: top; padding: .3rem .6rem; }
th, td { border-bottom: 1px solid #8884; }
code, pre { font: 14px/1.4 ui-monospace, monospace; }
pre { overflow: auto; padding: .8rem; background: #8881; }
.action { font-size: .8rem; padding: .1rem .5rem; border: 1px solid; border-radius: 1rem; }
"""


def asyncapi_page(document: Object) -> str:
    """The page of `document`, as `asyncapi_document` makes it."""
    return "\n".join(_lines(document)) + "\n"


def _lines(document: Object) -> Iterator[str]:
    title = escape(document["info"]["title"])
    yield '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">'
    yield f"<title>{title}</title>"
    yield '<meta name="viewport" content="width=device-width, initial-scale=1">'
    yield f"<style>{_STYLE}</style>\n</head>\n<body>"
    yield f"<h1>{title} <small>{escape(document['info']['version'])}</small></h1>"
    if description := document["info"].get("description"):
        yield f"<p>{escape(description)}</p>"
    if document["servers"]:
        yield "<h2>Brokers</h2>"
        yield from _table(
            ("vhost", "address"),
            (
                (each["title"], f"{each['protocol']}://{each['host']}{each['pathname']}")
                for each in document["servers"].values()
            ),
        )
    yield "<h2>Operations</h2>"
    for key, operation in document["operations"].items():
        yield from _operation(document, key, operation)
    if document["components"]["schemas"]:
        yield "<h2>Schemas</h2>"
        for name, schema in document["components"]["schemas"].items():
            yield f'<h3 id="{escape(f"schema-{name}")}">{escape(name)}</h3>'
            yield from _schema(schema)
    yield "<h2>AsyncAPI</h2>\n<details><summary>The document</summary>"
    yield f"<pre>{escape(json.dumps(document, indent=2, ensure_ascii=False))}</pre></details>"
    yield "</body>\n</html>"


def _operation(document: Object, key: str, operation: Object) -> Iterator[str]:
    channel = _resolved(document, operation["channel"])
    name, action = escape(operation["title"]), escape(operation["action"])
    yield f'<h3 id="{escape(key)}">{name} <span class="action">{action}</span></h3>'
    if description := operation.get("description"):
        yield f"<p>{escape(description)}</p>"
    where = channel["bindings"]["amqp"]
    rows = [
        (kind, where[kind]["name"] or "(default)")
        for kind in ("exchange", "queue")
        if kind in where
    ]
    if where["is"] == "routingKey":
        rows.append(("routing key", channel["address"] or "(each publish gives its own)"))
    rows += [
        (name, value)
        for name, value in operation["bindings"]["amqp"].items()
        if name != "bindingVersion"
    ]
    yield from _table(("", ""), rows)
    for message in operation["messages"]:
        yield from _message(_resolved(document, message))
    if reply := operation.get("reply"):
        yield "<h4>Reply</h4>"
        for message in reply["messages"]:
            yield from _message(_resolved(document, message))


def _message(message: Object) -> Iterator[str]:
    if content_type := message.get("contentType"):
        yield f"<p>Content type <code>{escape(content_type)}</code></p>"
    if "payload" in message:
        yield from _schema(message["payload"])


def _schema(schema: Object) -> Iterator[str]:
    if description := schema.get("description"):
        yield f"<p>{escape(description)}</p>"
    if properties := schema.get("properties"):
        required = schema.get("required", ())
        yield from _table(
            ("field", "type", "required", ""),
            (
                (name, _type(each), "yes" if name in required else "", each.get("description", ""))
                for name, each in properties.items()
            ),
        )
    else:
        yield f"<p>{escape(_type(schema))}</p>"
    yield "<details><summary>JSON schema</summary>"
    yield f"<pre>{escape(json.dumps(schema, indent=2, ensure_ascii=False))}</pre></details>"


def _type(schema: Object) -> str:
    if reference := schema.get("$ref"):
        return str(reference).rpartition("/")[2]
    if "enum" in schema or "const" in schema:
        return " | ".join(json.dumps(each) for each in schema.get("enum", [schema.get("const")]))
    for key in ("anyOf", "oneOf"):
        if key in schema:
            return " | ".join(_type(each) for each in schema[key])
    kind = str(schema.get("type", "any"))
    if kind == "array" and isinstance(schema.get("items"), Mapping):
        return f"array of {_type(schema['items'])}"
    return f"{kind} ({schema['format']})" if "format" in schema else kind


def _table(head: tuple[str, ...], rows: Any) -> Iterator[str]:
    yield "<table>"
    if any(head):
        yield f"<tr>{''.join(f'<th>{escape(each)}</th>' for each in head)}</tr>"
    for row in rows:
        cells = "".join(f"<td>{escape(str(each))}</td>" for each in row)
        yield f"<tr>{cells}</tr>"
    yield "</table>"


def _resolved(document: Object, reference: Object) -> Any:
    """Resolve a ``{"$ref": "#/a/b"}``, through further ones."""
    found: Any = reference
    while isinstance(found, Mapping) and "$ref" in found:
        parts = str(found["$ref"]).removeprefix("#/").split("/")
        found = document
        for part in parts:
            found = found[part]
    return found
