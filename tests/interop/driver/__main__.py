"""``python -m driver``."""

import sys

from driver.main import main

sys.exit(main(sys.argv[1:]))
