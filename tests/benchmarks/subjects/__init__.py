"""What is measured: each module is loaded in a process of its own, see `tests.benchmarks.child`."""
