"""Llama training: configuration, network, tensor-parallel plan, batches and export."""
