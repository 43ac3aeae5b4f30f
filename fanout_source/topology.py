"""What has to exist on the broker: exchanges, and (for subscribers) queues and bindings."""

from __future__ import annotations

import functools
import logging
import re
from collections.abc import Callable, Mapping
from typing import Any

import pika
from pika.exceptions import ChannelClosedByBroker

from .address import BrokerAddress
from .connection import ANY_RIGHTS, Rights, explain, explained, grant, is_absence
from .errors import BrokerError, BrokerRefused, OptionError, QueueBusy

NOT_FOUND, ACCESS_REFUSED, PRECONDITION_FAILED, RESOURCE_LOCKED = 404, 403, 406, 405
_OF_A_MARKER: dict[str, Any] = {"durable": True, "auto_delete": True, "internal": True}
DECLARE_MODES = ("auto", "passive", "none")

_log = logging.getLogger(__name__)


class Topology:
    """Declares over a connection, and looks. Every question has a channel of its own, which a
    refusal ends."""

    def __init__(
        self,
        connection: pika.BlockingConnection,
        address: BrokerAddress,
        rights: Rights = ANY_RIGHTS,
    ) -> None:
        """`rights` are those that would be enough for all that is asked for."""
        self._connection, self._address, self._rights = connection, address, rights

    def ensure_exchange(
        self,
        name: str,
        *,
        exchange_type: str = "fanout",
        durable: bool = False,
        declare: str = "auto",
    ) -> None:
        """See to it that the exchange exists with this type; create it when absent (`auto`).

        An exchange that is there with the right type is taken as it is, durable or not, so that
        programs which declare it differently work side by side, whoever starts first. That is
        what a passive declaration would give; declaring actively first also finds an exchange of
        another type, of which a passive one says nothing, and leaves no error in the broker's log
        when all is well. An account without the right to configure gets the passive declaration.
        """
        require_exchange_name(name)
        if declare == "none":
            return
        if declare == "auto":
            doing = f"declaring exchange {name!r}"
            try:
                refused = self._refusal(
                    doing,
                    lambda channel: channel.exchange_declare(name, exchange_type, durable=durable),
                )
            except BrokerRefused as error:
                if "unknown exchange type" in str(error):
                    raise OptionError(
                        f"the broker at {self._address} knows no exchangeType {exchange_type!r}: "
                        "check how it is written, or enable its plugin there"
                    ) from error
                raise
            if refused is None:
                return
            if refused.reply_code == PRECONDITION_FAILED:
                self._accept_or_refuse_other_settings(refused, name, exchange_type)
                return
            if refused.reply_code != ACCESS_REFUSED:
                raise self._explained(refused, doing) from refused
        self._require_exchange(name, may_create=declare == "auto")

    def ensure_queue(
        self, name: str, *, may_create: bool = True, arguments: Mapping[str, Any] | None = None
    ) -> int | None:
        """See to it that the durable queue exists and has no consumer; how many messages it
        holds, None when it was made just now."""
        doing = f"declaring queue {name!r}"
        found = self.look_for_queue(name)
        if found is None:
            if not may_create:
                raise BrokerRefused(
                    f"there is no queue {name!r} on the broker at {self._address}: have it created "
                    "(only declare=auto creates it)"
                )
        elif found.consumer_count:
            raise self._busy(name)
        if may_create:
            declared = dict(arguments or {})
            refused = self._refusal(
                doing, lambda c: c.queue_declare(name, durable=True, arguments=declared)
            )
            if refused is not None:
                self._accept_or_refuse_queue(refused, name, doing, is_there=found is not None)
        return int(found.message_count) if found else None

    def discard_queue(self, name: str) -> None:
        """Delete one that was made in vain."""
        doing = f"deleting queue {name!r}"
        self._refusal(doing, lambda c: c.queue_delete(name, if_unused=True, if_empty=True))

    def own_queue(self, name: str) -> None:
        """Keep everyone else who asks for the queue away, for as long as this connection lasts.

        That of its consumer does not do: a quorum queue has no exclusive consumers, and a
        subscriber whose spool is full has none at all.
        """
        owner = owner_of(name)
        refused = self._refusal(
            f"declaring queue {owner!r}", lambda c: c.queue_declare(owner, exclusive=True)
        )
        if refused is None:
            return
        if refused.reply_code == RESOURCE_LOCKED:
            raise self._busy(name)
        _log.warning(
            "whether another query reads from queue %r will not be known: %s",
            name,
            refused.reply_text,
        )

    def look_for_queue(self, name: str) -> Any | None:
        """What the broker says of it; None when there is none."""
        doing = f"looking for queue {name!r}"
        found = self._look(doing, lambda c: c.queue_declare(name, passive=True))
        return None if found is None else found.method

    def has_exchange(self, name: str) -> bool:
        doing = f"looking for exchange {name!r}"
        return self._look(doing, lambda c: c.exchange_declare(name, passive=True)) is not None

    def make_marker(self, marker: str, exchange: str) -> bool:
        """Make an exchange that tells later whether `exchange` has been there all the time:
        nothing else tells the owner of a queue that its binding was gone for a while.

        It is bound to `exchange`, publishes nothing, and goes by itself when that binding goes.
        False when the account may not make it, or somebody else's exchange has that name.
        """

        def make(channel: Any) -> None:
            _delete_marker(channel, marker)  # with whatever it was bound to
            channel.exchange_declare(marker, "fanout", **_OF_A_MARKER)
            channel.exchange_bind(exchange, marker)

        refused = self._refusal(f"making exchange {marker!r}", make)
        if refused is not None:
            _log.warning(
                "whether exchange %r is ever gone for a time, and the binding to it, will not be "
                "known: %s",
                exchange,
                refused.reply_text,
            )
        return refused is None

    def is_marker_whole(self, marker: str) -> bool:
        """Whether the exchange that it was made for has been there since then.

        The marker has gone with its binding when that exchange was deleted. A restart of the
        broker takes a transient exchange and leaves the marker, without its binding, and so
        unused. True when the account may not find out.
        """
        doing = f"looking at exchange {marker!r}"
        return None is not self._refusal(doing, lambda c: c.exchange_delete(marker, if_unused=True))

    def remove_markers(self, queue: str) -> int:
        """Those of a queue that is not wanted any more, and nobody else's; how many there were."""
        number = 0
        while self.has_exchange(marker := marker_of(queue, number)):
            delete = functools.partial(_delete_marker, marker=marker)
            self._refusal(f"removing exchange {marker!r}", delete)
            number += 1
        return number

    def _look(self, doing: str, ask: Callable[[Any], Any]) -> Any | None:
        """The answer; None when there is no such thing."""
        answer, refused = self._ask(doing, ask)
        if refused is not None and not is_absence(refused):
            raise self._explained(refused, doing) from refused
        return answer

    def _refusal(self, doing: str, ask: Callable[[Any], Any]) -> ChannelClosedByBroker | None:
        """What the broker says against it; None when it was done."""
        return self._ask(doing, ask)[1]

    def _ask(
        self, doing: str, ask: Callable[[Any], Any]
    ) -> tuple[Any | None, ChannelClosedByBroker | None]:
        with explained(self._address, doing, self._rights):
            channel = self._connection.channel()
            try:
                answer = ask(channel)
            except ChannelClosedByBroker as refused:
                return None, refused
            channel.close()
            return answer, None

    def _explained(self, refused: ChannelClosedByBroker, doing: str) -> BrokerError:
        return explain(refused, self._address, doing, self._rights)

    def _busy(self, name: str) -> QueueBusy:
        return QueueBusy(
            f"queue {name!r} on the broker at {self._address} has a consumer already, and belongs "
            "to one query: stop that one, or choose another queue"
        )

    def _accept_or_refuse_queue(
        self, refused: ChannelClosedByBroker, name: str, doing: str, *, is_there: bool
    ) -> None:
        if "invalid arg" in refused.reply_text:
            raise BrokerRefused(
                f"{doing} on the broker at {self._address}: {refused.reply_text}: check "
                "queueArguments"
            ) from refused
        if refused.reply_code == PRECONDITION_FAILED:
            raise BrokerRefused(
                f"queue {name!r} on the broker at {self._address} was made differently "
                f"({_difference(refused)}): ask for the same, or choose another queue"
            ) from refused
        if refused.reply_code != ACCESS_REFUSED or not is_there:
            raise self._explained(refused, doing) from refused

    def _accept_or_refuse_other_settings(
        self, refused: ChannelClosedByBroker, name: str, exchange_type: str
    ) -> None:
        # RabbitMQ compares the type before everything else: any other difference means that the
        # type is right.
        found = re.search(r"inequivalent arg '(\w+)'.*current is '?([^']+)'?", refused.reply_text)
        if found and found[1] != "type":
            return
        actual = found[2] if found else refused.reply_text
        raise BrokerRefused(
            f"exchange {name!r} on the broker at {self._address} is of type {actual!r}, "
            f"not {exchange_type!r}: choose another exchange, or say that type"
        ) from refused

    def _require_exchange(self, name: str, *, may_create: bool) -> None:
        if self.has_exchange(name):
            return
        if name.startswith("amq."):
            raise BrokerRefused(
                f"the broker at {self._address} has no exchange {name!r}, and names that begin "
                "with 'amq.' are its own: choose another name"
            )
        otherwise = " (declare=passive never creates it)"
        if may_create:
            configure, write, read = self._rights
            with_it = _also(configure, name), write, read
            otherwise = f", or let this account create it: {grant(self._address, with_it)}"
        raise BrokerRefused(
            f"there is no exchange {name!r} on the broker at {self._address}: have it created"
            f"{otherwise}"
        )


def _also(pattern: str, name: str) -> str:
    """A pattern of rights that this name matches, too."""
    if pattern == "^$":
        return f"^({re.escape(name)})$"
    return pattern if re.search(pattern, name) else f"{pattern[:-2]}|{re.escape(name)})$"


def _delete_marker(channel: Any, marker: str) -> None:
    channel.exchange_declare(marker, "fanout", **_OF_A_MARKER)  # refused when it is not ours
    channel.exchange_delete(marker)


def marker_of(queue: str, number: int = 0) -> str:
    """For the exchange with this place among those of a subscription that can be deleted."""
    return f"{queue}.bound" + (f".{number + 1}" if number else "")


def owner_of(queue: str) -> str:
    return f"{queue}.owner"


def _difference(error: ChannelClosedByBroker) -> str:
    text = str(error.reply_text)
    found = re.search(r"inequivalent arg '([^']+)'.*received (.*) but current is (.*)", text)
    if found is None:
        return text
    return f"{found[1]} is {found[3].rstrip('.')}, and {found[2]} is asked for"


def require_exchange_name(name: str) -> None:
    """Refuse a name that no exchange can have."""
    if not name:
        raise OptionError(
            "the exchange has an empty name: the default exchange cannot be used here"
        )
    require_name("exchange", name)


def require_name(what: str, name: str) -> None:
    """Refuse a name, or a routing key, that AMQP cannot carry."""
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        raise OptionError(f"the {what}'s name {name!r} is not UTF-8") from None
    if "\r" in name or "\n" in name:
        raise OptionError(f"the {what}'s name {name!r} has a line break, which the broker drops")
    if size > 255:
        raise OptionError(f"the {what}'s name has {size} bytes; AMQP allows 255")
