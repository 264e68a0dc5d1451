"""A service, and bundles for it."""

from tests.support.services import start, write_bundle_once

__all__ = ["start", "write_bundle_once"]
