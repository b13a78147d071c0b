"""What of a GPU training program does not run, or runs badly, on Trainium, read from its text."""
