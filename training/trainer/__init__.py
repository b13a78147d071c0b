"""One training run on one rank: the loop, its metrics, its files and the run's lock."""
