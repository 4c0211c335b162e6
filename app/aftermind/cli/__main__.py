"""`python -m aftermind.cli`, for processes that are started by us: it needs no script on the path."""

from aftermind.cli import main

main()
