"""`python -m outboxd` is `outboxd`."""

from outboxd.cli import main

main()
