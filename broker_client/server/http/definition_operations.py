"""Definitions over HTTP: export and import of vhosts, users, policies and topology."""

from __future__ import annotations

import logging
from email import message_from_bytes
from email.message import Message

from starlette.responses import Response

from broker_client.core.access import ADMINISTRATOR
from broker_client.node.definitions.exporting import export_in_steps
from broker_client.node.definitions.importing import import_in_steps
from broker_client.runtime.pace import as_json
from broker_client.server.http.calls import NO_CONTENT, Call, Operations, definitions_json
from broker_client.server.http.errors import bad_request
from broker_client.server.http.listings import shown

log: logging.Logger = logging.getLogger("broker_client.server")

operations: Operations = Operations()

_SECTIONS = (
    "users",
    "vhosts",
    "permissions",
    "topic_permissions",
    "policies",
    "parameters",
    "global_parameters",
    "queues",
    "exchanges",
    "bindings",
)


@operations.get("/api/definitions", "Everything that was defined", ADMINISTRATOR)
async def get_definitions(call: Call) -> Response:
    return await _exported(call, None)


@operations.get("/api/definitions/{vhost}", "What was defined in a vhost", ADMINISTRATOR)
async def get_vhost_definitions(call: Call) -> Response:
    return await _exported(call, call.vhost().name)


@operations.post(
    "/api/definitions",
    "Add and change what the definitions say; nothing is deleted",
    ADMINISTRATOR,
    body=_SECTIONS,
    status=NO_CONTENT,
)
async def post_definitions(call: Call) -> int:
    return await _imported(call, None)


@operations.post(
    "/api/definitions/{vhost}",
    "The same for one vhost",
    ADMINISTRATOR,
    body=_SECTIONS,
    status=NO_CONTENT,
)
async def post_vhost_definitions(call: Call) -> int:
    return await _imported(call, call.vhost().name)


async def _exported(call: Call, vhost: str | None) -> Response:
    headers = {}
    if "download" in call.query:
        headers["Content-Disposition"] = 'attachment; filename="definitions.json"'
    exported = await export_in_steps(call.node, vhost)
    document = shown(exported.document, call.query)
    return Response(await as_json(document), media_type="application/json", headers=headers)


async def _imported(call: Call, vhost: str | None) -> int:
    body = await call.body()
    kind = call.request.headers.get("content-type", "")
    if kind.startswith("multipart/form-data"):
        body = _file_of_form(kind, body)
    report = await import_in_steps(call.node, await definitions_json(body), vhost)
    for note in report.notes:  # RabbitMQ's answer has no place for them
        log.warning("definitions imported by user %r: %s", call.caller.name, note)
    return NO_CONTENT


def _file_of_form(kind: str, body: bytes) -> bytes:
    """What a form has in the field `file`; RabbitMQ's page sends definitions like this."""
    form = message_from_bytes(b"Content-Type: " + kind.encode("latin-1") + b"\r\n\r\n" + body)
    parts = form.get_payload()
    for part in parts if isinstance(parts, list) else ():
        if isinstance(part, Message) and part.get_param("name", header="Content-Disposition") == (
            "file"
        ):
            content = part.get_payload(decode=True)
            if isinstance(content, bytes):
                return content
    raise bad_request("the form has no field: file")
