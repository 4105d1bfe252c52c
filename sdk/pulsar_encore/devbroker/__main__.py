"""``python -m pulsar_encore.devbroker --port N``."""

from .main import main

raise SystemExit(main())
