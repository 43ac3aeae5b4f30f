"""The spool: a log of record batches on disk that is valid at every instant.

Format, version 1
-----------------
A spool is a folder, named by its id (32 hexadecimal digits), in the folder that `spoolDir` names:

    <spoolDir>/<spool id>/
        00000000000000000000-00000000000000004096-8d1f03b2.arrow     a segment
        00000000000000004096-00000000000000004173-0c22e9a1.arrow
        state.json          the version, and what no segment shows: gaps, losses, the owner's note
        lock                held by the process that owns the spool (local disks)
        owner               names the process that owns the spool (everywhere else)
        *.tmp               being written; without meaning after a crash, removed by the next owner
        *.damaged           set aside by an owner that was told to go on without it

A **segment** holds the messages with offsets from its start (inclusive) to its end (exclusive),
both in the name in 20 decimal digits, so that names sort as offsets do. Inside is an Arrow IPC file
with one record batch, any tool that knows Arrow opens it; the schema's metadata say
`fanout.spool = 1`. The last part of the name is the CRC-32 of the whole file in eight hexadecimal
digits. A segment never changes.

The listing of the folder is the index. There is no manifest that could disagree with it.

Life
----
*Append*: the batch is written to a temporary file, which is synced, renamed and the folder synced,
in this order; only then does `append` return, and only then may a message be acked. On an object
store one PUT takes the place of all that. After an error the spool takes no more: what is on disk
is not known, and nothing that was not appended may be acked.

*Recovery*: temporary files are removed. The ranges must follow each other without hole or overlap,
every CRC must be right, files that are not the spool's own are left alone. Anything else is
`SpoolDamaged`, which names the file, or, when the loss is accepted, a recorded lost range: the
damaged file is renamed, never removed.

*Drop*: whole segments at or below an offset are deleted, but never the last one, since its name is
where the next offset comes from.

*Ownership*: one process owns a spool. On a local disk a second one gets `SpoolBusy` for as long as
the first is alive. Elsewhere the last to open it owns it, and the one before is told at its next
append.

Readers need no lock: they are given slices of segments, and a segment that is there is whole.
"""

from .segment import Segment, Slice
from .spool import (
    Gap,
    Spool,
    Unowned,
    default_location,
    find_unowned,
    read_slice,
    remove_leftovers,
)

__all__ = [
    "Gap",
    "Segment",
    "Slice",
    "Spool",
    "Unowned",
    "default_location",
    "find_unowned",
    "read_slice",
    "remove_leftovers",
]
