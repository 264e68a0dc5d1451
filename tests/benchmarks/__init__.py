"""How fast it is, always as a ratio to something else that runs beside it: `make bench`."""
