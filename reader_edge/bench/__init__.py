"""What `reader-edge bench` and `run --compare` do: measuring apart from reporting."""
