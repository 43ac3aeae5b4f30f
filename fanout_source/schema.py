"""The columns as Spark knows them."""

from __future__ import annotations

from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.types import StructField, StructType

from .errors import OptionError
from .message import COLUMNS

SCHEMA = StructType([StructField(name, from_arrow_type(kind)) for name, kind in COLUMNS.items()])
_INTEGERS = ("tinyint", "smallint", "int", "bigint")
# What can be published, and as which types.
_PUBLISHABLE = {
    field.name: {"binary": ("string", "binary"), "int": _INTEGERS}.get(
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


def publishable(schema: StructType, *, ignore_unknown: bool) -> list[str]:
    """The columns of rows that are to be published, without those that say how a row came; a
    schema that does not fit is refused."""
    flaws, chosen = [], []
    for field in schema:
        kinds, kind = _PUBLISHABLE.get(field.name), field.dataType.simpleString()
        if kinds is not None and kind in kinds:
            chosen.append(field.name)
        elif kinds is not None:
            flaws.append(f"column {field.name} is {kind}, not {' or '.join(kinds)}")
        elif field.name not in _OF_RECEIPT and not ignore_unknown:
            flaws.append(
                f"there is no column {field.name} in a message (ignoreUnknownColumns=true leaves "
                "it out)"
            )
    if "body" not in schema.fieldNames():
        flaws.append("column body is missing")
    flaws += [f"column {name} is there twice" for name in set(chosen) if chosen.count(name) > 1]
    if flaws:
        known = ", ".join(f"{name} {kinds[0]}" for name, kinds in _PUBLISHABLE.items())
        raise OptionError(
            f"the rows cannot be published: {'; '.join(flaws)}. A message has: {known}"
        )
    return chosen
