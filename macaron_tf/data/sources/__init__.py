"""Sources of text: TensorFlow Datasets, files, Python functions and the default corpus."""
