"""What `make dist` builds is all that executors need."""

import shutil
import signal
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

from local_spark import PROJECT
from spark_processes import written
from waiting import wait_until

SOURCES = ("fanout_source", "pyspark_fanout.py", "setup.cfg", "pyproject.toml", "README.md")


@pytest.fixture
def archive(tmp_path):
    checkout = tmp_path / "checkout"
    checkout.mkdir()
    for name in (*SOURCES, "Makefile", "LICENSE"):
        copy = shutil.copytree if (PROJECT / name).is_dir() else shutil.copy
        copy(PROJECT / name, checkout / name)
    command = ["make", "dist", "READY=LICENSE", "--assume-old=LICENSE", f"PY={sys.executable}"]
    subprocess.run(command, cwd=checkout, check=True, stdout=subprocess.DEVNULL)
    [archive] = checkout.glob("dist/*.zip")
    return archive


@pytest.fixture
def python(tmp_path):
    """A Python that has what we need, but not us."""
    venv.create(tmp_path / "venv")
    [packages] = (tmp_path / "venv").glob("lib/python*/site-packages")
    (packages / "others.pth").write_text(sysconfig.get_path("purelib") + "\n")
    python: Path = tmp_path / "venv" / "bin" / "python"
    found = subprocess.run([python, "-c", "import fanout_source"], cwd=tmp_path, check=False)
    assert found.returncode == 1
    return python


@pytest.mark.long
def test_executors_of_their_own_read_with_the_zip(
    submit, archive, python, emit, bound_queues, spark, tmp_path
):
    options = ("--master", "local-cluster[2,1,1024]", "--py-files", str(archive))
    spool = f"spoolDir={tmp_path / 'spool'}"
    job = submit(
        "logs_to_parquet", "--path", tmp_path / "logs", "--trigger", "1 second",
        "--option", spool, "--option", "minPartitions=4", "--files", 4,
        options=options, python=python,
    )  # fmt: skip
    wait_until(bound_queues, "it is subscribed", 120)
    sent = emit(1_000)
    wait_until(lambda: len(written(spark, tmp_path / "logs")) >= 1_000, "Parquet has all", 120)
    assert written(spark, tmp_path / "logs") == sent
    assert job.end(signal.SIGTERM) == 0
