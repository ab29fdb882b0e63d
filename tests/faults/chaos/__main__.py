"""The command of a chaos run."""

import sys

from tests.faults.chaos.run import main

sys.exit(main())
