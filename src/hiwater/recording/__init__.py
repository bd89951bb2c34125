"""The part of hiwater that runs inside the recorded process. It uses only the standard library and the native
module."""
