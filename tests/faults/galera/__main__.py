"""The command of a storm."""

import sys

from tests.faults.galera.run import main

sys.exit(main())
