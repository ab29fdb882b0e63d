"""The command of a soak run."""

import sys

from tests.faults.soak.run import main

sys.exit(main())
