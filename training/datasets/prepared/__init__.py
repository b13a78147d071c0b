"""Known corpora and datasets, fetched, verified and stored: the workload ``prepare``."""
