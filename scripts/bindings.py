#!/usr/bin/env python3
"""Shows who is subscribed: the exchanges that have bindings, and the queues behind them."""

from __future__ import annotations

import argparse
from collections import defaultdict
from typing import Any

import broker
from machine import SetupError
from management import Management
from program import run


def main() -> None:
    argparse.ArgumentParser(description=__doc__).parse_args()
    running = broker.running()
    if running is None:
        raise SetupError("no broker is running: make broker starts one")
    show(running)


def show(running: broker.Broker) -> None:
    """Print the exchanges of a broker's virtual host, each with the queues behind it."""
    api = Management(running)
    vhost = running.address.vhost
    queues = {queue["name"]: queue for queue in api.get("queues", vhost)}
    subscriptions = defaultdict(list)
    for binding in api.get("bindings", vhost):
        if binding["source"]:  # the default exchange is bound to everything
            subscriptions[binding["source"]].append(binding)
    told = f", as {running.management_url} has it" if running.kind == "external" else ""
    print(f"{running.address}{told}")
    for exchange in sorted(api.get("exchanges", vhost), key=lambda exchange: exchange["name"]):
        name = exchange["name"]
        if exchange["internal"]:  # nobody can publish to it
            continue
        if name in subscriptions or (name and not name.startswith("amq.")):
            _print_exchange(exchange, subscriptions[name], queues)


def _print_exchange(
    exchange: dict[str, Any], bindings: list[dict[str, Any]], queues: dict[str, dict[str, Any]]
) -> None:
    durable = "durable" if exchange["durable"] else "transient"
    print(f"\n{exchange['name']}  ({exchange['type']}, {durable})")
    if not bindings:
        print("  └─ nobody is subscribed: what is published now is discarded")
    for number, binding in enumerate(bindings, 1):
        corner = "└─" if number == len(bindings) else "├─"
        key = f" key {binding['routing_key']!r}" if binding["routing_key"] else ""
        detail = _describe(queues.get(binding["destination"], {}))
        print(f"  {corner}► {binding['destination']}{key}{detail}")


def _describe(queue: dict[str, Any]) -> str:
    if not queue:
        return ""
    kind = "exclusive" if queue.get("exclusive") else "durable" if queue["durable"] else "transient"
    owner = queue.get("owner_pid_details") or {}
    peer = f", {owner['name'].split(' -> ')[0]}" if owner.get("name") else ""
    messages, consumers = queue.get("messages", 0), queue.get("consumers", 0)
    return f"  {kind}, {messages} messages, {consumers} consumers{peer}"


if __name__ == "__main__":
    run("bindings", main)
