"""The ground of launcher and workers: contract, configuration, device, progress, failures."""
