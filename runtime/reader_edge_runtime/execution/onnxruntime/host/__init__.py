"""The CPU provider: tensors in the process's own memory."""
