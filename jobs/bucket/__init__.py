"""The deployment's bucket as the desk sees it: objects, transfers, and what runs left there."""
