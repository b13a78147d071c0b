# src/neuronx_distributed/trainer/checkpoint_storage.py, v2.28.0.

# Where a rank's file lies until S3 has it.
SHM_PATH: str
