"""Strict settings: read from presets, files and flags, checked once, dumped with every run."""
