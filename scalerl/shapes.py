"""Names for tensor shapes, checked by jaxtyping and beartype under pytest and free in production.

Axis letters (`docs/notation.md`): B completions, T tokens, N selected tokens, V vocabulary, D width.
"""

from jaxtyping import Bool, Float, Int64
from torch import Tensor

B = Float[Tensor, "B"]
BT = Float[Tensor, "B T"]
IdB = Int64[Tensor, "B"]
IdBT = Int64[Tensor, "B T"]
MaskB = Bool[Tensor, "B"]
MaskBT = Bool[Tensor, "B T"]
