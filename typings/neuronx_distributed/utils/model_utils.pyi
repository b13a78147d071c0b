# src/neuronx_distributed/utils/model_utils.py, v2.28.0.
from enum import IntEnum

class LogicalNCConfig(IntEnum):
    LNC_1 = 1
    LNC_2 = 2

def get_platform_lnc() -> LogicalNCConfig: ...
