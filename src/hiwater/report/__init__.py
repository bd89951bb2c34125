"""Looks: one module a format, each with `write(report, stream)`. All show the same holdings in the same order."""
