"""Emulators of AWS, Kubernetes and TorchNeuron's device; only the last needs torch."""
