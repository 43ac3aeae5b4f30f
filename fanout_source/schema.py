"""The columns as Spark knows them."""

from __future__ import annotations

from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.types import StructField, StructType

from .errors import OptionError
from .message import COLUMNS

SCHEMA = StructType([StructField(name, from_arrow_type(kind)) for name, kind in COLUMNS.items()])
_INTEGERS = ("int", "bigint", "smallint", "tinyint")
# What can be published, and as which types.
_PUBLISHABLE = {
    field.name: {"binary": ("binary", "string"), "int": _INTEGERS}.get(
        field.dataType.simpleString(), (field.dataType.simpleString(),)
    )
    for field in SCHEMA
}
# What a row that was received has besides: how it came.
_OF_RECEIPT = ("exchange", "redelivered", "received_at", "offset", "decode_error")
for _name in _OF_RECEIPT:
    del _PUBLISHABLE[_name]
_TYPES = {field.name: field.dataType.simpleString() for field in SCHEMA}


def require_columns(schema: StructType) -> None:
    """Refuse a schema that selects what there is not."""
    names = schema.fieldNames()
    flaws = [] if names else ["it has no column"]
    flaws += [f"column {name} is there twice" for name in set(names) if names.count(name) > 1]
    for field in schema:
        kind = _TYPES.get(field.name)
        if kind is None:
            flaws.append(f"there is no column {field.name}")
        elif kind != field.dataType.simpleString():
            flaws.append(f"column {field.name} is {kind}, not {field.dataType.simpleString()}")
    if flaws:
        right = ", ".join(f"{name} {kind}" for name, kind in _TYPES.items())
        raise OptionError(f"the schema does not fit: {'; '.join(flaws)}. The columns are: {right}")


def publishable(schema: StructType, *, ignore_unknown: bool) -> dict[str, str]:
    """Which columns of rows are published, and as what; those that say how a row came are not. A
    schema that does not fit is refused."""
    flaws, unknown = [], []
    chosen: dict[str, str] = {}
    for field in schema:
        name, kind = field.name.lower(), field.dataType.simpleString().split(" collate ")[0]
        kinds = _PUBLISHABLE.get(name)
        if kinds is None:
            unknown += [field.name] if name not in _OF_RECEIPT else []
        elif name in chosen.values():
            flaws.append(f"column {name} is there twice")
        elif kind in kinds:
            chosen[field.name] = name
        elif kind != "void" or name == "body":
            flaws.append(f"column {field.name} is {kind}, not {' or '.join(kinds)}")
    if unknown and not ignore_unknown:
        more = f" and {len(unknown) - 10} more" if len(unknown) > 10 else ""
        flaws.append(
            f"there is no column {', '.join(unknown[:10])}{more} in a message "
            "(ignoreUnknownColumns=true leaves out what is unknown)"
        )
    if "body" not in chosen.values() and not any("column body" in flaw for flaw in flaws):
        flaws.append("column body is missing")
    if flaws:
        known = ", ".join(f"{name} {kinds[0]}" for name, kinds in _PUBLISHABLE.items())
        raise OptionError(
            f"the rows cannot be published: {'; '.join(flaws)}. A message has: {known}"
        )
    return chosen
