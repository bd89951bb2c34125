"""What the readers and the writer of captures both have to know by heart, without numpy. The rest stands in each file's
schema text.

The engine's side of it is `native/capture/format.h`.
"""

from __future__ import annotations

MAGIC = b"\x89HIW\r\n\x1a\n"
VERSION = 3
NATIVE_VERSION = 5
"""Of a capture with native frames."""

# What allocates first, so that the allocated kinds are those below a number.
KINDS = ("python", "native", "mapping", "device", "shared", "file", "attached", "reserved", "slack")
COUNTED_KINDS = KINDS[:5]

DEVICE_HISTORY = "device history"
"""The recorder that captures made of another library's history name."""

CODE_PYTHON, CODE_THREAD, CODE_NATIVE_THREAD, CODE_LABEL, CODE_WAIT, CODE_NATIVE, CODE_NATIVE_STACK = range(7)
WAITED_FOR = "[waited for] "
"""What stands before the name of the function in a code of the kind CODE_WAIT."""
