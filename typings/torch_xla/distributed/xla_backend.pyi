# torch_xla/distributed/xla_backend.py, 2.9: registers the back-end "xla" with torch.distributed.
