"""What Spark processes of the tests have in common."""

from __future__ import annotations

from pathlib import Path

# A JVM that lives for seconds takes a third less CPU when it does not optimise itself for hours.
SHORT_LIVED = "-XX:TieredStopAtLevel=1"


def kept_in(folder: Path) -> dict[str, str]:
    """An environment in which whatever a killed Spark leaves is in this folder."""
    return {
        "TMPDIR": str(folder),
        "SPARK_LOCAL_DIRS": str(folder),
        "SPARK_SUBMIT_OPTS": f"-Djava.io.tmpdir={folder} {SHORT_LIVED}",
    }
