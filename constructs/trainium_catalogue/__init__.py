"""What the project knows about Trainium instances, Neuron releases, workloads and contracts.

Standard library only, so that every part (synthesis, node, desk) can import it.
"""
