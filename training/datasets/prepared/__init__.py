"""Known corpora and datasets, fetched, checked and put into the bucket: workload ``prepare``."""
