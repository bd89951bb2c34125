"""Sends tasks to the workers of the current folder and prints the answers and their times.

The broker of files ends a worker that reads a message while it is being written. So messages are written elsewhere, and
moved.
"""

import json
import os
import sys

from queue_tasks import answer, app

if __name__ == "__main__":
    os.makedirs("outbox", exist_ok=True)
    app.conf.broker_transport_options = {**app.conf.broker_transport_options, "data_folder_out": "outbox"}
    sent = [answer.delay(number) for number in range(int(sys.argv[1]))]
    for name in os.listdir("outbox"):
        os.rename(f"outbox/{name}", f"queue/{name}")
    print(json.dumps([one.get(timeout=100, interval=0.01) for one in sent]))
