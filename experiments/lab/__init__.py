"""Benchmarks, studies and the TPU check; the library does not import these modules."""
