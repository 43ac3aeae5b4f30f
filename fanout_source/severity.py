"""How bad it is, in the words of Python's `logging`."""

SEVERITIES = ("debug", "info", "warning", "error", "critical")
