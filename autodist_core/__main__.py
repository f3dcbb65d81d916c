"""`python -m autodist_core` is the command `autodist`."""

import sys

from autodist_core.command_line import main

sys.exit(main())
