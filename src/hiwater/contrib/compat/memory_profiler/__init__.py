"""What the drop-in modules `memory_profiler` and `mprof` are made of; `dropin/` holds only their names."""
