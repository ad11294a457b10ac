"""`python -m fabrictwin`."""

import sys

from fabrictwin.cli import main

sys.exit(main())
