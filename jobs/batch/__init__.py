"""Jobs on AWS Batch: submitted, described, explained, stopped."""
