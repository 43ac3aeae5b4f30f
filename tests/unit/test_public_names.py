import subprocess
import sys

import fanout_source


def test_every_public_name_is_there():
    for name in fanout_source.__all__:
        assert getattr(fanout_source, name).__name__ == name


def test_importing_the_package_loads_neither_pika_nor_spark():
    program = (
        "import sys, fanout_source; print([m for m in ('pika', 'pyspark') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.strip() == "[]"
