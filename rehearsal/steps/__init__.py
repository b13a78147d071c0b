"""The commands of both halves of a rehearsal, as tables, and the code that runs them."""
