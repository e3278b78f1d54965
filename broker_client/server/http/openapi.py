"""The OpenAPI description of the management API, made of the table of operations."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from broker_client.server.http.calls import Operation

_LISTING = (
    ("page", "integer", "Which page; the answer is then an object with `items`."),
    ("page_size", "integer", "Objects a page, 1 to 500; 100 by default."),
    ("name", "string", "Only objects whose name contains this."),
    ("use_regex", "boolean", "`name` is a regular expression."),
    ("sort", "string", "Column to sort by."),
    ("sort_reverse", "boolean", "Sort from high to low."),
    ("columns", "string", "Columns to show, with commas; `a.b` is one of an object within."),
)
_PARTS = re.compile(r"\{(\w+)\}")


def openapi_document(operations: Sequence[Operation], version: str) -> dict[str, Any]:
    """The description of `operations`."""
    paths: dict[str, dict[str, Any]] = {}
    for operation in operations:
        paths.setdefault(operation.path, {})[operation.method.lower()] = _described(operation)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "broker_client management API",
            "version": version,
            "description": "The paths of RabbitMQ's management API, and some besides. Names in "
            "paths are percent-encoded: the vhost / is %2F.",
        },
        "paths": paths,
        "security": [{"basic": []}],
        "components": {
            "securitySchemes": {"basic": {"type": "http", "scheme": "basic"}},
            "schemas": {
                "Error": {
                    "type": "object",
                    "required": ["error", "reason"],
                    "properties": {"error": {"type": "string"}, "reason": {"type": "string"}},
                }
            },
        },
    }


def _described(operation: Operation) -> dict[str, Any]:
    parameters: list[dict[str, Any]] = [
        {"name": part, "in": "path", "required": True, "schema": {"type": "string"}}
        for part in _PARTS.findall(operation.path)
    ]
    if operation.method == "GET":
        parameters += [
            {"name": name, "in": "query", "schema": {"type": kind}, "description": text}
            for name, kind, text in _LISTING
            if operation.is_list or name == "columns"
        ]
    statuses: dict[str, Any] = {str(operation.status): {"description": "Done"}}
    if operation.method == "PUT":
        statuses |= {"201": {"description": "Made"}, "204": {"description": "Was there, changed"}}
    for status, text in (
        ("400", "The request is invalid"),
        ("401", "Not logged in, or not permitted"),
        ("404", "No such object"),
    ):
        schema = {"$ref": "#/components/schemas/Error"}
        statuses[status] = {
            "description": text,
            "content": {"application/json": {"schema": schema}},
        }
    described: dict[str, Any] = {
        "summary": operation.summary,
        "description": f"Needs the tag {operation.tag}.",
        "operationId": f"{operation.method.lower()}{re.sub(r'[^a-z]+', '_', operation.path)}",
        "parameters": parameters,
        "responses": statuses,
    }
    if operation.body:
        properties: dict[str, Any] = {key: {} for key in operation.body}
        schema_of_body = {"type": "object", "properties": properties}
        described["requestBody"] = {"content": {"application/json": {"schema": schema_of_body}}}
    return described
