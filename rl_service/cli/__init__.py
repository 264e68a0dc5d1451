"""The `rl-service` command: one verb a file, thin; the only place that prints."""
