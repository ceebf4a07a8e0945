"""The only door to ``kernels/``: torch.library operators, their fakes and gradients, and the choice of backend.

==============  ==============================================================================
backend         runs
==============  ==============================================================================
reference       anywhere: plain torch, generic over semirings, differentiable by autograd's tape
cpu             CPU tensors: C++ kernels with explicit backward passes
triton          CUDA tensors (or CPU tensors under ``TRITON_INTERPRET=1``)
torch-struct    anywhere: through the torch-struct package's own distributions
==============  ==============================================================================
"""

from structlearn.ops._backends import BACKENDS as BACKENDS
from structlearn.ops._backends import backends as backends
from structlearn.ops._backends import choose_backend as choose_backend
