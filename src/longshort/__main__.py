"""`python -m longshort`: the command line, as torchrun and accelerate launch it."""

import sys

if __name__ == "__main__":
    from longshort.lab.cli import main

    sys.exit(main())
