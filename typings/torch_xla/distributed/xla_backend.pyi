# torch_xla/distributed/xla_backend.py, 2.9: registers the backend "xla" with torch.distributed.
