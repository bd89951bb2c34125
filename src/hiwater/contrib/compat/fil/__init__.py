"""The implementation of the drop-in module `filprofiler`."""
