"""What launcher and workers share: a node's contract, a run's configuration, progress, failures."""
