"""``python -m pfedfda``."""

import sys

from pfedfda.cli import main

if __name__ == "__main__":
    sys.exit(main())
