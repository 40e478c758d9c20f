"""Where text comes from: TensorFlow Datasets, files, the embedded corpus."""
