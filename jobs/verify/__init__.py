"""Claims about AWS and the hardware: where they are listed, probed and recorded."""
