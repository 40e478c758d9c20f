"""Temporal convolutional and recurrent networks on sequence tasks."""
