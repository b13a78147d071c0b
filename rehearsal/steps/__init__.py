"""The commands that both halves of a rehearsal run, as tables, and what runs them."""
