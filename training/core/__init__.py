"""The base of launcher and workers: contract, configuration, device, progress, failures."""
