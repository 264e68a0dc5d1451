"""Ray for the length of a run, the machine, processes and signals."""
