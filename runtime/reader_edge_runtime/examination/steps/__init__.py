"""What runs in a process of its own: it tells each step before it begins (step_process.py)."""
