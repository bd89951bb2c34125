"""What the drop-in modules `memory_profiler`, `mprof` and `filprofiler` are made of; `hiwater/compat/` holds only their names."""
