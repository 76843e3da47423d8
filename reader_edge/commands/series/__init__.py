"""The commands of `reader-edge series`."""
