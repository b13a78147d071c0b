"""The commands of both halves of a rehearsal, and the code that runs them."""
