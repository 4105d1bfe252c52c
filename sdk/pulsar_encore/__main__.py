"""``python -m pulsar_encore``: the command line."""

from .cli import main

raise SystemExit(main())
