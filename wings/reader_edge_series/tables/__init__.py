"""What `reader-edge series` does: tables in and out, plots, the bundled model."""
