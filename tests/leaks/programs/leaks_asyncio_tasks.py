"""Tasks that wait for an event that never comes, and are kept in a set."""

import asyncio

from noise import VALUES, text, work

_TASKS: set[asyncio.Task[None]] = set()


async def wait_for(event: asyncio.Event) -> None:
    message = text()  # leak
    await event.wait()
    print(message)


async def serve() -> None:
    event = asyncio.Event()
    for _ in range(VALUES):
        _TASKS.add(asyncio.ensure_future(wait_for(event)))  # leak
    await asyncio.sleep(0)


_LOOP = asyncio.new_event_loop()


def call() -> None:
    work()
    _LOOP.run_until_complete(serve())
