"""The verbs of the command line for torch."""
