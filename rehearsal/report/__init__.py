"""The output of a rehearsal, during the run and at the end."""
