"""Packs text into token shards, prepares other datasets, and reads both as samples."""
