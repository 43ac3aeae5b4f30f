#!/bin/sh
# Makes .venv with the tested versions, and sees to it that Java 17 or newer is there.
# Usage: setup.sh [PYTHON]
set -eu
cd "$(dirname "$0")/.."
python=${1:-python3}

say() { printf 'setup: %s\n' "$*" >&2; }
fail() { say "$*"; exit 1; }

install() { # what it is for, package
    if ! command -v apt-get >/dev/null; then
        fail "$1 is missing: install it ($2 on Debian and Ubuntu), then run this again"
    fi
    sudo=
    if [ "$(id -u)" != 0 ]; then
        sudo=sudo
        if ! command -v sudo >/dev/null || ! sudo -n true 2>/dev/null && ! [ -t 0 ]; then
            fail "$1 is missing: run 'apt-get install $2' as root, then run this again"
        fi
    fi
    say "installing $2 with apt …"
    log=$(mktemp)
    if ! { $sudo apt-get update -q && $sudo env DEBIAN_FRONTEND=noninteractive \
        apt-get install -q -y --no-install-recommends "$2"; } >"$log" 2>&1; then
        tail -n 5 "$log" >&2
        rm -f "$log"
        fail "apt-get install $2 failed with the output above"
    fi
    rm -f "$log"
}

java_major() {
    "${JAVA_HOME:+$JAVA_HOME/bin/}java" -version 2>&1 |
        sed -n 's/.*version "\(1\.\)\{0,1\}\([0-9]*\).*/\2/p' | head -n 1
}

command -v "$python" >/dev/null || install "Python 3.10 or newer" python3
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' ||
    fail "$("$python" --version) is too old: Python 3.10 or newer is needed (make setup PYTHON=…)"

major=$(java_major || true)
if [ "${major:-0}" -lt 17 ]; then
    [ -z "${JAVA_HOME:-}" ] || fail "JAVA_HOME is not a Java 17 or newer: set it to one, or unset it"
    for package in openjdk-17-jre-headless openjdk-21-jre-headless default-jre-headless; do
        apt-cache show "$package" >/dev/null 2>&1 && break
    done
    install "Java 17 or newer" "$package"
    major=$(java_major || true)
    [ "${major:-0}" -ge 17 ] || fail "Java 17 or newer is still missing: install it, then run this again"
fi

version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
    install "Python's venv module" "python$version-venv"
fi
if [ -d .venv ] && ! .venv/bin/python -c 'import pip' 2>/dev/null; then
    rm -rf .venv # it was left half made, or its Python is gone
fi
[ -d .venv ] || "$python" -m venv .venv
say "installing the package and its tested versions into .venv …"
.venv/bin/python -m pip install -q --disable-pip-version-check \
    -c conf/constraints.txt setuptools wheel
# compat: a folder on the path, which is where Spark looks for sources; not a hook in Python.
.venv/bin/python -m pip install -q --disable-pip-version-check --no-build-isolation \
    --config-settings editable_mode=compat -c conf/constraints.txt -e '.[dev]'
touch .venv/ready
say "done: Python $(.venv/bin/python -c 'import platform; print(platform.python_version())'), Java $major"
