"""Exports ONNX models that Unity and onnxruntime load."""
