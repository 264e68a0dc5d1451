"""Trainings as jobs of a Ray cluster: submitted, followed, stopped."""
