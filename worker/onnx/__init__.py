"""Writes ONNX models that Unity and onnxruntime load."""
