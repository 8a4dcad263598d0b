"""``python -m fleetsim``."""

from fleetsim.cli.main import main

main()
