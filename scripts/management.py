"""The few calls of RabbitMQ's management API that the scripts and tests need."""

from __future__ import annotations

import base64
import http.client
import json
import urllib.request
from typing import Any
from urllib.parse import quote

from broker import Broker
from machine import SetupError


class Management:
    """Answers are decoded JSON; a refusal is a `SetupError` that names what was asked."""

    def __init__(self, broker: Broker) -> None:
        self._url = broker.management_url.rstrip("/")
        account = f"{broker.address.username}:{broker.address.password}"
        self._authorization = "Basic " + base64.b64encode(account.encode()).decode()

    def get(self, *path: str) -> Any:
        return self._call("GET", path)

    def put(self, *path: str, body: Any = None) -> None:
        self._call("PUT", path, body or {})

    def delete(self, *path: str) -> None:
        self._call("DELETE", path)

    def _call(self, method: str, path: tuple[str, ...], body: Any = None) -> Any:
        name = "/".join(quote(part, safe="") for part in path)
        try:
            request = urllib.request.Request(
                f"{self._url}/api/{name}",
                method=method,
                data=None if body is None else json.dumps(body).encode(),
                headers={"Authorization": self._authorization, "Content-Type": "application/json"},
            )
            with urllib.request.urlopen(request, timeout=30) as answer:
                content = answer.read()
        except (OSError, ValueError, http.client.HTTPException) as error:
            raise SetupError(
                f"the management API at {self._url} did not do {method} {name}: {error} "
                "(FANOUT_MANAGEMENT_URL says where it is)"
            ) from error
        return json.loads(content) if content else None
