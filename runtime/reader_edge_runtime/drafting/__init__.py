"""The wing that guesses the next tokens: knows token ids, counts and trees; no model, no onnxruntime."""
