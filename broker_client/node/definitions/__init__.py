"""Definitions in RabbitMQ's JSON: what a broker has been told to have, without messages.

A file that RabbitMQ exports is read here, and what is exported here RabbitMQ reads
(https://www.rabbitmq.com/docs/definitions). An import adds and changes, and deletes nothing. It
is checked as a whole first, and then done in one command, so that all of it is kept or none; or in
steps, between which the broker serves others. What this broker does not have is named in the
report.
"""

from broker_client.node.definitions.exporting import Export, export_definitions
from broker_client.node.definitions.importing import (
    ImportReport,
    import_definitions,
    import_in_steps,
)

__all__ = ["Export", "ImportReport", "export_definitions", "import_definitions", "import_in_steps"]
