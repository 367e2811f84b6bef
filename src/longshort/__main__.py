"""`python -m longshort`: the command line, as torchrun and accelerate launch it."""

import sys

from longshort.cli import main

sys.exit(main())
