"""Engines that run a task's network: TensorFlow, SavedModel, LiteRT, ONNX and OpenVINO."""
