"""Code shared by launcher and workers: contract, configuration, device, progress, failures."""
