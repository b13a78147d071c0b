"""The deployment's bucket as the CLI sees it: objects, transfers, and files left by runs."""
