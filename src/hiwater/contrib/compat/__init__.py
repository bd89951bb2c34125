"""hiwater under the names of the tools that people come from. `dropin/` holds the modules for PYTHONPATH, the rest is what those are made of."""
