"""`python -m fabrictwin`."""

import sys

from fabrictwin.cli import program

sys.exit(program())
