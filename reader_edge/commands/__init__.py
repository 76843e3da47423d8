"""The commands of `reader-edge`, one file each.

At the top of these files only click is imported: help must be instant, and work where ONNX Runtime is missing.
"""
