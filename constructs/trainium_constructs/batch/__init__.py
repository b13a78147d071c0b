"""CDK constructs for AWS Batch: compute environments, queues, job definitions, zone moves."""
