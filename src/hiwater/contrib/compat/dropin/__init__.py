"""The folder that `python -m hiwater.compat` prints: modules with the names of other tools.

`bin` has their commands. No other module may be here: with this folder on PYTHONPATH, each of its modules can be
imported by its bare name.
"""
