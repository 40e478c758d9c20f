"""Proofs and measurements: benchmarks, a TPU's check, studies; no command or library needs them."""
