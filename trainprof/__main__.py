"""`python -m trainprof`."""

from trainprof.cli.app import main

main()
