"""The model package on disk: shared truth of export and runtime."""
