"""Pre-training of Llama models: configuration, model, tensor-parallel plan and the loop."""
