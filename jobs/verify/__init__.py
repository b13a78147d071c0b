"""Claims about AWS and the hardware: the list, the probes, and the record of results."""
