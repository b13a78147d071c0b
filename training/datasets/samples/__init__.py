"""From a dataset in storage to the samples of a training step."""
