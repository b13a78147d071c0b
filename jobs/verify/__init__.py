"""Claims about AWS and the hardware: their list, their probes, and the record of the results."""
