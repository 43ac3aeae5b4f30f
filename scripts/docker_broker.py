"""RabbitMQ in a container, through testcontainers, for machines with a Docker engine."""

from __future__ import annotations

from typing import Any

IMAGE = "rabbitmq:4-management"
PLUGINS = (
    "rabbitmq_consistent_hash_exchange",
    "rabbitmq_event_exchange",
    "rabbitmq_prometheus",
    "rabbitmq_stream",
)


def available() -> bool:
    """Whether a Docker engine answers."""
    import docker

    try:
        return bool(docker.from_env(timeout=5).ping())
    except (docker.errors.DockerException, OSError):
        return False


def start(*, reap: bool) -> tuple[str, str, dict[str, Any]]:
    """A container that answers AMQP: its URL, its management URL, and what `stop` needs."""
    from testcontainers.core.config import testcontainers_config
    from testcontainers.rabbitmq import RabbitMqContainer

    testcontainers_config.ryuk_disabled = not reap
    container = RabbitMqContainer(IMAGE)
    container.with_exposed_ports(15672)
    container.start()  # waits for an AMQP handshake of its own
    container.exec(["rabbitmq-plugins", "enable", *PLUGINS])
    host = container.get_container_host_ip()
    url = f"amqp://guest:guest@{host}:{container.get_exposed_port(5672)}/%2F"
    management = f"http://{host}:{container.get_exposed_port(15672)}"
    return url, management, {"container": container.get_wrapped_container().id}


def stop(process: dict[str, Any]) -> None:
    import docker

    try:
        docker.from_env().containers.get(process["container"]).remove(force=True, v=True)
    except docker.errors.NotFound:
        return
