"""Everything that a person sees of a rehearsal, while it runs and at its end."""
