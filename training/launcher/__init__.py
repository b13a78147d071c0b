"""The launcher of a node: join the others, check the host, start torchrun, watch it, end coded."""
