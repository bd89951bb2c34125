"""Tasks of celery, with a broker and a store of results in the current folder."""

import os

import celery

import service_work

for name in ("queue", "results"):
    os.makedirs(name, exist_ok=True)
app = celery.Celery("queue_tasks", broker="filesystem://", backend=f"file://{os.getcwd()}/results")
app.conf.broker_transport_options = {"data_folder_in": "queue", "data_folder_out": "queue", "polling_interval": 0.01}
app.conf.worker_hijack_root_logger = False


@app.task
def answer(number: int) -> tuple[int, float]:
    return service_work.answer(number)
