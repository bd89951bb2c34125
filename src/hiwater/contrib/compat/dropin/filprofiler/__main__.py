"""`python -m filprofiler`, and what bin/fil-profile runs."""

from __future__ import annotations

import sys

from hiwater.contrib.compat.fil.command import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
