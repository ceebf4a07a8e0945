"""Triton kernels; `chain` and `chain_count` hold the launch functions of the linear chain.

Nothing here imports triton until a launch function is called, so the package imports on machines without it.
"""
