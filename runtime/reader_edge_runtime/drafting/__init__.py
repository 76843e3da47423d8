"""Drafts the next tokens: knows token ids, counts and trees; no model, no onnxruntime."""
