"""CDK constructs for jobs on AWS Batch: compute environments, queues, job definitions, a watch."""
