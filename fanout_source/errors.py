"""Everything that this package raises on purpose.

    FanoutError
    ├── OptionError             what was asked for cannot be
    ├── BrokerError             the broker could not do it
    │   ├── BrokerUnreachable   nobody answers: trying again may help
    │   ├── BrokerRefused       the broker said no: trying again will not help
    │   │   ├── NotPermitted    the account has not the right to do it
    │   │   └── NotFound        an exchange or queue is not there
    │   ├── QueueBusy           another consumer has the queue: trying again may help
    │   ├── ConnectionLost      it worked, then it ended: trying again may help
    │   │   └── NodeDown        the node that has a queue is away; what is published passes it by
    │   └── PublishFailed       messages that the broker did not confirm
    ├── MessagesMissed          a gap, where none is accepted
    └── SpoolError              the spool's folder could not do it
        ├── SpoolBusy           another query owns the spool
        └── SpoolDamaged        files that are missing, or not as they were written

Each message is one line that says what happened, where, and what to do next. None holds
a password; the cause is chained.
"""

from __future__ import annotations


class FanoutError(Exception):
    """Base of all errors here; `str()` of it can be shown to a person as it is."""


class OptionError(FanoutError, ValueError):
    """An option, argument or address that cannot be used."""


class BrokerError(FanoutError):
    """The broker could not do what was asked of it."""


class BrokerUnreachable(BrokerError):
    """No AMQP broker answers at the address."""


class BrokerRefused(BrokerError):
    """The broker answered and said no."""


class NotPermitted(BrokerRefused):
    """The account has not the right to do what was asked of the broker."""


class NotFound(BrokerRefused):
    """An exchange or a queue is not there (any more)."""


class QueueBusy(BrokerError):
    """A queue that belongs to one subscriber has another one."""


class ConnectionLost(BrokerError):
    """A connection that had worked ended."""


class NodeDown(ConnectionLost):
    """The broker answers, but not the node of its cluster that has the queue."""


class PublishFailed(BrokerError):
    """Messages were handed over that the broker did not confirm."""


class MessagesMissed(FanoutError):
    """Messages may have been missed, and whoever asks does not accept that."""


class SpoolError(FanoutError):
    """The folder of a spool could not be read or written."""


class SpoolBusy(SpoolError):
    """The spool belongs to another process that is alive."""


class SpoolDamaged(SpoolError):
    """Segments are missing, or their bytes are not those that were written."""
