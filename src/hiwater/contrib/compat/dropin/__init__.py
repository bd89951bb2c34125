"""The folder that `hiwater compat-path` prints: modules with the names of the tools people come from.

`bin` has their commands. Only those modules may be here: everything in this folder can be imported by its bare name by whoever puts it on PYTHONPATH.
"""
