"""The implementation of the drop-in module `pytorch_memlab`."""
