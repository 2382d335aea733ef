"""Nothing that the tests start phones home; Flower reads this when it is imported."""

import os

from tests.flower.loopback import QUIET

os.environ.update(QUIET)
