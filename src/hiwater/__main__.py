"""`python -m hiwater` is the same as `hiwater`."""

import sys

from hiwater.cli import main

sys.exit(main())
