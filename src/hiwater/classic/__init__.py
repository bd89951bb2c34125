"""What the drop-in modules `memory_profiler` and `mprof` are made of; `hiwater/compat/` holds only their names."""
