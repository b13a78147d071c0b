"""From text to packed token shards: the workload ``tokenize``."""
