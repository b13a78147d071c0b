"""Emulators of AWS, Kubernetes and TorchNeuron's device; but for the last they need no torch."""
