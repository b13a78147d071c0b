"""Everything that a user sees of a rehearsal, during the run and at the end."""
