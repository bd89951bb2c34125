"""A server of the standard library alone, with four workers that are forked before the first request. SIGTERM ends
it."""

import os
import signal
import sys
from wsgiref.simple_server import WSGIRequestHandler, make_server

from web_wsgi import application


class Quiet(WSGIRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


def leave(*_: object) -> None:
    sys.exit(0)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, leave)
    workers = []
    with make_server("127.0.0.1", int(sys.argv[1]), application, handler_class=Quiet) as server:
        for _ in range(4):
            pid = os.fork()
            if pid == 0:
                server.serve_forever()
            workers.append(pid)
        try:
            signal.pause()
        finally:
            for pid in workers:
                os.kill(pid, signal.SIGTERM)
            for pid in workers:
                os.waitpid(pid, 0)
