"""Jobs on the cluster: TorchX builds the Volcano jobs, and Kubernetes reports their state."""
