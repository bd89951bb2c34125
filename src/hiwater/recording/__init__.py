"""What runs inside the recorded process: standard library and the native module only."""
