"""Reads the memory histories of other libraries (torch's allocator, JAX's profiler) as captures of a device."""
