"""The columns as Spark knows them."""

from __future__ import annotations

from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.types import StructField, StructType

from .errors import OptionError
from .message import COLUMNS

SCHEMA = StructType([StructField(name, from_arrow_type(kind)) for name, kind in COLUMNS.items()])
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
