"""Named steps at which a test makes the real process fail; off, a step costs one look at a dict.

`FANOUT_FAILPOINTS="spool.fsync=EIO,spool.rename=kill@3"` raises that `OSError` each time the first
step is reached, and ends the process with SIGKILL the third time it reaches the second. `stop`
sends SIGSTOP. It is read when the process starts; `@` and the name of a file stand for what is in
that file then.
"""

from __future__ import annotations

import errno
import os
import signal
from dataclasses import dataclass
from pathlib import Path


@dataclass
class _Failure:
    action: str
    skip: int


def reach(step: str) -> None:
    """Say that a step begins. Raises or ends the process when the test asked for that."""
    if _armed:
        _fail(step)


def arm(plan: str) -> None:
    """Replace what is armed in this process; an empty plan turns everything off."""
    _armed.clear()
    if plan.startswith("@"):
        plan = Path(plan[1:]).read_text().strip()
    for item in filter(None, plan.split(",")):
        step, _, action = item.strip().partition("=")
        action, _, turn = action.partition("@")
        _armed[step] = _Failure(action, int(turn or 1) - 1)


def _fail(step: str) -> None:
    failure = _armed.get(step)
    if failure is None:
        return
    if failure.skip > 0:
        failure.skip -= 1
    elif failure.action == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif failure.action == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    else:
        number = getattr(errno, failure.action)
        raise OSError(number, os.strerror(number), f"failpoint {step}")


_armed: dict[str, _Failure] = {}
arm(os.environ.get("FANOUT_FAILPOINTS", ""))
