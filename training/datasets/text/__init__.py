"""Makes packed token shards of text: the workload ``tokenize``."""
