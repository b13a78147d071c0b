"""Nodes of jobs as local process groups or containers, for AWS Batch and Kubernetes."""
