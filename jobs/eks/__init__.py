"""Jobs on the cluster: TorchX turns them into Volcano jobs, and Kubernetes reports their state."""
