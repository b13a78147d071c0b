"""One training run on one rank: the loop, evaluation, metrics, and the lock on the run's name."""
