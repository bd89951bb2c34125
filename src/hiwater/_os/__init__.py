"""The operating system's side: cgroup files, /proc, sizes, and the way to the native module. Imports nothing of hiwater but its errors."""
