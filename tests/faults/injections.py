"""The faults. Each happens to a `World` and returns when it is over, or when it has begun; what
then has to happen, the world waits for."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass

from world import HEARTBEAT_SECONDS, World

from machine import SetupError
from private_node import control
from spark_processes import kill_family

Inject = Callable[[World, random.Random], None]


@dataclass(frozen=True)
class Fault:
    name: str
    inject: Inject
    interrupts: bool  # whether the subscription ends with it, and is made anew
    weight: float = 1  # how often, compared with others
    of_tasks: bool = False  # whether it happens to tasks that read

    def can_happen(self, world: World) -> bool:
        return world.reads_in_tasks or not self.of_tasks

    def happen(self, world: World, chance: random.Random) -> float:
        """Inject it; the seconds until what is published then is received and acked."""
        before = world.witness.subscriptions
        self.inject(world, chance)
        if self.interrupts:
            return world.await_recovery(before)
        return world.await_recovery()


FAULTS: list[Fault] = []


def fault(
    *, interrupts: bool = True, weight: float = 1, of_tasks: bool = False
) -> Callable[[Inject], Fault]:
    def add(inject: Inject) -> Fault:
        FAULTS.append(Fault(inject.__name__, inject, interrupts, weight, of_tasks))
        return FAULTS[-1]

    return add


# ── network ─────────────────────────────────────────────────────────────────────────────────────


@fault(weight=12)
def tcp_reset(world: World, chance: random.Random) -> None:
    world.witness.reset()


@fault(weight=2)
def half_open_connection(world: World, chance: random.Random) -> None:
    """Nothing passes any more, and nobody is told."""
    world.witness.stall()


@fault(interrupts=False, weight=2)
def slow_network(world: World, chance: random.Random) -> None:
    world.witness.throttle(chance.randrange(20_000, 200_000))
    time.sleep(1)
    world.witness.throttle(0)


@fault(weight=3)
def broker_that_cannot_be_reached_for_a_time(world: World, chance: random.Random) -> None:
    world.witness.refuse()
    world.witness.reset()
    time.sleep(chance.uniform(0, 3))
    world.witness.accept()


# ── broker ──────────────────────────────────────────────────────────────────────────────────────


@fault(weight=6)
def connection_closed_by_an_operator(world: World, chance: random.Random) -> None:
    for name in world.wait(world.connections, "the broker shows the connection"):
        with contextlib.suppress(SetupError):
            world.management.delete("connections", name)


@fault(weight=4)
def queue_deleted(world: World, chance: random.Random) -> None:
    """Of a named queue, what it held goes with it."""
    for name in world.wait(world.queues, "it has a queue"):
        with contextlib.suppress(SetupError):  # an exclusive one that has gone by itself
            control(world.broker.process, "delete_queue", "-p", world.vhost, name)


@fault(weight=1)
def exchange_deleted(world: World, chance: random.Random) -> None:
    """Noticed when the binding is renewed, once a heartbeat; the channel is closed by that. Had
    an emitter made it anew before, nobody could tell."""
    with world.emitter.paused():
        world.management.delete("exchanges", world.vhost, "logs")
        time.sleep(1.5 * HEARTBEAT_SECONDS)


@fault()
def broker_restart(world: World, chance: random.Random) -> None:
    control(world.broker.process, "stop_app")
    control(world.broker.process, "start_app")


@fault(weight=0.3)
def broker_stopped_for_half_a_minute(world: World, chance: random.Random) -> None:
    control(world.broker.process, "stop_app")
    time.sleep(30)
    control(world.broker.process, "start_app")


@fault(interrupts=False, weight=2)
def memory_alarm(world: World, chance: random.Random) -> None:
    control(world.broker.process, "set_vm_memory_high_watermark", "0")
    time.sleep(0.5)
    control(world.broker.process, "set_vm_memory_high_watermark", "0.4")


# ── processes ───────────────────────────────────────────────────────────────────────────────────


@fault(weight=3)
def planner_killed(world: World, chance: random.Random) -> None:
    os.kill(world.planner, signal.SIGKILL)


@fault(weight=2)
def planner_stopped_past_the_heartbeat(world: World, chance: random.Random) -> None:
    planner = world.planner
    os.kill(planner, signal.SIGSTOP)
    time.sleep(4 * HEARTBEAT_SECONDS)
    os.kill(planner, signal.SIGCONT)


@fault(weight=2)
def query_stopped(world: World, chance: random.Random) -> None:
    world.restart_query()


@fault(interrupts=False, weight=2)
def python_worker_killed(world: World, chance: random.Random) -> None:
    """In the middle of a task, as often as not: it is done again."""
    for pid in world.processes("pyspark.daemon"):
        if pid != world.planner:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


@fault(interrupts=False, weight=2, of_tasks=True)
def worker_killed_in_the_middle_of_a_read(world: World, chance: random.Random) -> None:
    """Of a task that has more to read; it is done again."""
    log, crashed = world.folder / "application.log", "Python worker exited unexpectedly"
    before = log.read_text().count(crashed)
    world.failpoints.write_text(f"reader.slice=kill@{chance.randrange(1, 4)}")
    python_worker_killed.inject(world, chance)  # the next ones are armed
    world.wait(lambda: log.read_text().count(crashed) > before, "a worker has ended")
    world.failpoints.write_text("")
    python_worker_killed.inject(world, chance)


@fault()
def driver_killed(world: World, chance: random.Random) -> None:
    assert world.application is not None
    kill_family(world.application)
    world.start_application()


@fault()
def jvm_killed(world: World, chance: random.Random) -> None:
    """Alone: Python ends by itself, on both sides of it."""
    assert world.application is not None
    family = world.processes("")
    for pid in world.processes("org.apache.spark.deploy"):
        os.kill(pid, signal.SIGKILL)
    with contextlib.suppress(BrokenPipeError):
        assert world.application.stdin is not None
        world.application.stdin.close()
    world.wait(lambda: not any(map(_is_alive, family)), "its processes have ended", 30)
    kill_family(world.application)
    world.start_application()


def _is_alive(pid: int) -> bool:
    with contextlib.suppress(OSError), open(f"/proc/{pid}/stat") as stat:
        return stat.read().rpartition(")")[2].split()[0] != "Z"
    return False


# ── steps of the receiver, and the disk below it ────────────────────────────────────────────────


def _fail_at(step: str, action: str) -> Inject:
    def inject(world: World, chance: random.Random) -> None:
        planner = world.planner
        before = world.witness.subscriptions
        world.failpoints.write_text(f"{step}={action}@{chance.randrange(3, 12)}")
        os.kill(planner, signal.SIGKILL)
        armed = world.wait(lambda: _next(world, planner), "there is a new planner")
        world.wait(
            lambda: world.witness.subscriptions > before or not _is_alive(armed), "it is armed"
        )
        world.failpoints.write_text("")
        world.wait(lambda: not _is_alive(armed), f"it has ended at {step}")
        before = world.witness.subscriptions
        world.wait(lambda: world.witness.subscriptions > before, "subscribed anew")

    return inject


def _next(world: World, planner: int) -> int | None:
    current = world.planner
    return current if current != planner else None


FAILURES = [
    ("receiver.write", "kill"), ("spool.write", "kill"), ("spool.fsync", "kill"),
    ("spool.rename", "kill"), ("spool.sync_folder", "kill"), ("spool.published", "kill"),
    ("receiver.ack", "kill"), ("receiver.acked", "kill"),
    ("spool.write", "ENOSPC"), ("spool.fsync", "EIO"), ("spool.rename", "ENOSPC"),
]  # fmt: skip
FAULTS += [
    Fault(f"{action}_at_{step.replace('.', '_')}", _fail_at(step, action), interrupts=True)
    for step, action in FAILURES
]
