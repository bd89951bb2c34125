"""Reads the memory histories of other libraries (torch's allocator, JAX's profiler, CuPy's hooks) as captures of a device."""
