"""Jobs on the cluster: TorchX makes Volcano jobs of them, and Kubernetes tells how they stand."""
