"""The workload ``prepare``: fetch, verify and store known corpora and datasets."""
