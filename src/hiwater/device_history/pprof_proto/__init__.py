"""The pprof format, generated: see README.md here."""
