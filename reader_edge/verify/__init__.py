"""What `reader-edge verify` does: plain against drafted decoding, bit by bit."""
