"""What may be done to the machine: ask apt for a package, when root or sudo allows it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys


class SetupError(Exception):
    """One line for the person at the keyboard."""


# Debian starts a service as soon as its package is installed. policy-rc.d is its documented
# way to install without starting; one that is already there is left alone.
_INSTALL = """
set -e
export DEBIAN_FRONTEND=noninteractive
if [ ! -e /usr/sbin/policy-rc.d ]; then
    trap 'rm -f /usr/sbin/policy-rc.d' EXIT
    printf '#!/bin/sh\\nexit 101\\n' > /usr/sbin/policy-rc.d
    chmod +x /usr/sbin/policy-rc.d
fi
apt-get update -q
apt-get install -q -y --no-install-recommends "$@"
"""


def can_install() -> bool:
    return shutil.which("apt-get") is not None and (os.geteuid() == 0 or _sudo_works())


def apt_install(*packages: str) -> None:
    """Install Debian packages without starting their services."""
    sudo = [] if os.geteuid() == 0 else ["sudo"]
    done = subprocess.run(
        [*sudo, "sh", "-c", _INSTALL, "sh", *packages],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if done.returncode != 0:
        sys.stderr.write(done.stdout[-2000:])
        raise SetupError(f"apt-get install {' '.join(packages)} failed with the output above")


def _sudo_works() -> bool:
    if shutil.which("sudo") is None:
        return False
    # With a person at the keyboard sudo may ask for the password; otherwise it must not wait.
    ask = sys.stdin.isatty()
    command = ["sudo", "true"] if ask else ["sudo", "-n", "true"]
    return subprocess.run(command, capture_output=not ask).returncode == 0
