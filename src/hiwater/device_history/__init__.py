"""Memory histories that other libraries kept (torch's allocator, JAX's profiler, CuPy's hooks), read as captures of a device."""
