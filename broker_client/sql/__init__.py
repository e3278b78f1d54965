"""An outbox and an inbox in an application's own database, on SQLAlchemy 2 (extra `sqlalchemy`).

`TransactionalOutbox` keeps publishes in the application's transaction, `OutboxRelay` publishes them
once that is committed, and `Inbox` recognises duplicates within a handler's transaction. Imported
by the application alone; nothing else in the package needs it.
"""

from broker_client.errors import UnsupportedError, install_extra

try:
    from broker_client.sql.inbox import Inbox
    from broker_client.sql.outbox_relay import OutboxRelay
    from broker_client.sql.transactional_outbox import TransactionalOutbox
except ImportError as _error:
    raise UnsupportedError("broker_client.sql", install_extra("sqlalchemy")) from _error

__all__ = ["Inbox", "OutboxRelay", "TransactionalOutbox"]
