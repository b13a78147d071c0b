"""One command per file; slow imports happen only when it runs."""
