"""Run the command `autodist` as `python -m autodist_core`."""

import sys

from autodist_core.command_line import main

sys.exit(main())
