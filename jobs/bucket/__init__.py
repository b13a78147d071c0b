"""Access to the deployment's bucket: objects, transfers, and the files of runs."""
