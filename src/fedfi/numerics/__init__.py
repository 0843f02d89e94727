"""Mathematics on tensors that knows nothing of federations: selection, Fisher information, quantization."""

from fedfi.numerics.fisher import coefficient_of_variation, diagonal_fisher, example_squares, masking_error
from fedfi.numerics.quantization import Quantized, dequantize, quantize
from fedfi.numerics.selection import (
    count_for,
    jaccard,
    keep_rates,
    pack_bits,
    select,
    top_k_mask,
    unpack_bits,
)

__all__ = [
    "Quantized",
    "coefficient_of_variation",
    "count_for",
    "dequantize",
    "diagonal_fisher",
    "example_squares",
    "jaccard",
    "keep_rates",
    "masking_error",
    "pack_bits",
    "quantize",
    "select",
    "top_k_mask",
    "unpack_bits",
]
