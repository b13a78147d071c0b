"""One training run on one rank: the loop, its metrics, and the lock on the run's name."""
