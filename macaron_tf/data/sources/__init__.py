"""Sources of text: TensorFlow Datasets, files, the embedded corpus."""
