"""Jobs on AWS Batch: submit, describe, explain and stop them."""
