"""What one writes first: a Spark source around a pika callback. It acknowledges what it has in
memory, hands tuples on, and forgets all when it ends."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

from pyspark.sql.datasource import DataSource, SimpleDataSourceStreamReader

from fanout_source.address import BrokerAddress
from fanout_source.connection import open_connection

SCHEMA = (
    "body binary, exchange string, routing_key string, headers map<string,string>, "
    "content_type string, delivery_mode int, message_id string, timestamp bigint, app_id string"
)


class NaiveSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "naive"

    def schema(self) -> str:
        return SCHEMA

    def simpleStreamReader(self, schema: Any) -> SimpleDataSourceStreamReader:
        return NaiveReader(self.options)


class NaiveReader(SimpleDataSourceStreamReader):
    def __init__(self, options: dict[str, str]) -> None:
        self._options = options
        self._waiting: list[tuple[Any, ...]] = []
        self._thread: threading.Thread | None = None

    def initialOffset(self) -> dict[str, int]:
        return {"offset": 0}

    def read(self, start: dict[str, int]) -> tuple[Iterator[tuple[Any, ...]], dict[str, int]]:
        if self._thread is None:
            self._thread = threading.Thread(target=self._consume, daemon=True)
            self._thread.start()
        rows, self._waiting = self._waiting, []
        return iter(rows), {"offset": start["offset"] + len(rows)}

    def readBetweenOffsets(self, start: dict, end: dict) -> Iterator[tuple[Any, ...]]:
        return iter([])  # they are gone

    def commit(self, end: dict[str, int]) -> None:
        pass

    def _consume(self) -> None:
        address = BrokerAddress.parse(self._options["address"])
        heartbeat = int(self._options["heartbeat"])
        channel = open_connection(address, heartbeat_seconds=heartbeat).channel()
        channel.basic_qos(prefetch_count=int(self._options["prefetch"]))
        seen = 0

        def on_message(channel: Any, method: Any, properties: Any, body: bytes) -> None:
            nonlocal seen
            seen += 1
            p = properties
            self._waiting.append(
                (body, method.exchange, method.routing_key, p.headers, p.content_type,
                 p.delivery_mode, p.message_id, p.timestamp, p.app_id)
            )  # fmt: skip
            if seen % 4096 == 0:
                channel.basic_ack(method.delivery_tag, multiple=True)

        channel.basic_consume(self._options["queue"], on_message)
        channel.start_consuming()
