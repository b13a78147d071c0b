"""Makes packed token shards of text, prepares other datasets, and reads both as samples."""
