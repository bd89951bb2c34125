"""Heavy imports: every library that is loaded is a chance to do too much work."""

import asyncio  # noqa: F401
import ctypes  # noqa: F401
import decimal  # noqa: F401
import json  # noqa: F401
import sqlite3  # noqa: F401
import ssl  # noqa: F401

import numpy  # noqa: F401 - imported for the load alone
import pandas

print(pandas.__version__)
