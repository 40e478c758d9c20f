"""The library: layers, models, objectives, data, training, decoding and evaluation."""
