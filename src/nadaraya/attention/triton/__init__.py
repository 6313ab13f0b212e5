"""The operator on fused GPU kernels, written in Triton: O(N) memory, every gradient, deterministic.

Triton is imported with the first call. Without a GPU the kernels run, slowly, in Triton's interpreter
(TRITON_INTERPRET=1), when asked for by name.
"""

from nadaraya.attention.triton.backend import attention as attention
from nadaraya.attention.triton.backend import why_not as why_not
