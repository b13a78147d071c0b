from . import checkpoint as checkpoint
from . import checkpoint_storage as checkpoint_storage
