"""Settings files that ship with the package: the paper's, tuned ones, and the quickstart."""
