"""`reader-edge bench` and its commands, one file each."""
