"""What every service here does for a request: build a table, write it as JSON, read that again, and compress it, as
web services do."""

import json
import time
import zlib

ROWS = 300


def answer(number: int) -> tuple[int, float]:
    """The answer for a number, and the milliseconds of the processor's time that it took: workers share the
    processors with others."""
    began = time.thread_time()
    rows = [{"id": index, "name": f"row {index}", "value": number * index} for index in range(ROWS)]
    text = json.dumps(rows)
    packed = zlib.compress(text.encode())
    total = sum(row["value"] for row in json.loads(zlib.decompress(packed)))
    return total, (time.thread_time() - began) * 1e3


def expected(number: int) -> int:
    return number * (ROWS * (ROWS - 1) // 2)
