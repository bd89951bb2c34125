"""What the drop-in module `pytorch_memlab` is made of."""
