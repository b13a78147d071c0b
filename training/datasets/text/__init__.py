"""The workload ``tokenize``: pack text into token shards."""
