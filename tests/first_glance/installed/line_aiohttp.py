import asyncio

import aiohttp
from aiohttp import web

KEPT = []


async def rows(request):
    KEPT.append([f"row {number}" for number in range(600_000)])  # HERE
    return web.json_response(len(KEPT))


async def serve():
    app = web.Application()
    app.router.add_get("/", rows)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = site._server.sockets[0].getsockname()[1]
    async with aiohttp.ClientSession() as session:
        print(await (await session.get(f"http://127.0.0.1:{port}/")).text())
    await runner.cleanup()


def main():
    asyncio.run(serve())


if __name__ == "__main__":
    main()
