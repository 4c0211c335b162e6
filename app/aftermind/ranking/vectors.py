"""Vectors of any embedder, brought to length one and compared."""

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float32]
Matrix = NDArray[np.float32]


def unit(vectors: Matrix) -> Matrix:
    """The same directions with length 1; a zero or non-finite vector becomes zeros."""
    clean = np.asarray(vectors, dtype=np.float32)
    if not np.isfinite(clean).all():
        clean = np.nan_to_num(clean, nan=0.0, posinf=0.0, neginf=0.0)
    lengths = np.linalg.norm(clean, axis=-1, keepdims=True)
    return (clean / np.where(lengths > 0, lengths, 1.0)).astype(np.float32)


def whole(vector: Vector | Matrix) -> Vector:
    """The vector of a text, which is the first row if its parts have vectors, too."""
    return vector if vector.ndim == 1 else vector[0]


def cosine(matrix: Matrix, vector: Vector) -> NDArray[np.float64]:
    """The cosine of each row to the vector; 0 where either has no direction."""
    return (unit(matrix) @ unit(vector)).astype(np.float64)


def part_vectors(vector: Vector | Matrix) -> Matrix:
    """The vectors of the parts of a text, a row each: of the passages of a long text, the sentences of a short one."""
    return vector[1:] if vector.ndim > 1 else vector[None][1:]
