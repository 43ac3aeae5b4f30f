"""How the scripts end: with what a person can act on, never with a traceback of ours."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from typing import NoReturn

from fanout_source.errors import FanoutError
from machine import SetupError


def run(name: str, main: Callable[[], int | None]) -> NoReturn:
    """Run a script: an expected error is one line and exit code 1; Ctrl-C is 130.

    SIGTERM ends it the way Ctrl-C does, so that whatever was begun is cleaned up.
    """
    signal.signal(signal.SIGTERM, _terminate)
    try:
        code = main() or 0
        if sys.stdout is not None:
            sys.stdout.flush()
    except (FanoutError, SetupError) as error:
        sys.exit(f"{name}: {error}")
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:  # whoever reads our output has seen enough
        _forget_stdout()
        sys.exit(0)
    except OSError as error:
        _forget_stdout()
        sys.exit(f"{name}: {error}")
    sys.exit(code)


def _terminate(_number: int, _frame: object) -> NoReturn:
    sys.exit(143)


def _forget_stdout() -> None:
    """What could not be written is not tried again when the interpreter ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
