"""Packs text into token shards: the workload ``tokenize``."""
