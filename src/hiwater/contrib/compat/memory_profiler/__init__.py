"""The implementation of the drop-in modules `memory_profiler` and `mprof`; `dropin/` has only their names."""
