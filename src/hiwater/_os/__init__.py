"""The operating system: cgroup files, /proc, sizes, and the loader of the native module. Imports nothing of hiwater
except its errors."""
