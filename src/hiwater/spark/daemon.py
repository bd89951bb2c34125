"""Spark's Python daemon with recorded workers, for `spark.python.daemon.module=hiwater.spark.daemon`."""

from hiwater.contrib.cluster.spark_worker import run_daemon

if __name__ == "__main__":
    run_daemon()
