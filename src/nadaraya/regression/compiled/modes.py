"""What is summed over pairs, as compiled code names it.

Beside Σ κ C: nothing for VALUES; Σ κ' Δ² C, for derivatives by bandwidth; Σ κ' Δ C, by position; for MOMENTS
Σ κ Δ C and Σ κ Δ Δᵀ C_0, of which local linear fits are made; for LINES, given rows a and coefficients β of
every query, their derivatives by bandwidth, Σ κ' Δ² (a · z) (C − C_0 β · z) with z = (1, −Δ), and for C_0
itself Σ κ' Δ² (a · z)² C_0.
"""

VALUES, BY_BANDWIDTH, BY_POSITION, MOMENTS, LINES = range(5)
