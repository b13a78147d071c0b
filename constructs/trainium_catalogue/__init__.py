"""The facts about Trainium instances, Neuron releases, workloads and contracts, as data.

Standard library only, so that every part (synthesis, node, CLI) can import it.
"""
