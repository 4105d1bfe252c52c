"""``python -m pulsar_encore.cli``."""

from . import main

raise SystemExit(main())
