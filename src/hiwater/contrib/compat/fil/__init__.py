"""What the drop-in module `filprofiler` is made of."""
