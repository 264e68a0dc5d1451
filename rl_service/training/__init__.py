"""One training: the trainer, the run on disk, evaluation, the best policy, tracking."""
