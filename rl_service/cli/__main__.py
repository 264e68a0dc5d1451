"""`python -m rl_service.cli` is the `rl-service` command."""

from __future__ import annotations

import sys

from rl_service.cli.app import main

if __name__ == "__main__":
    sys.exit(main())
