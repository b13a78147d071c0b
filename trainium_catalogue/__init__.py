"""Facts about Trainium instances, Neuron releases, workloads and contracts, as data.

Standard library only, so that synthesis, nodes and the CLI can all import it.
"""
