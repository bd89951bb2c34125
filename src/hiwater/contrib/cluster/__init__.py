"""Clusters: `worker` records each worker process, `job` merges the captures, and a module for each engine joins the
two."""
