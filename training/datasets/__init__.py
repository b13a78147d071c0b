"""Packs text into token shards, prepares other datasets, and reads samples from both."""
