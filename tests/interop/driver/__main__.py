"""``python -m driver``."""

import sys

from driver.main import main

try:
    sys.exit(main(sys.argv[1:]))
except KeyboardInterrupt:
    sys.exit("interop: stopped")
