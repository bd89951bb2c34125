"""hiwater under the names of other tools. `dropin/` has the modules for PYTHONPATH; the other modules implement
them."""
