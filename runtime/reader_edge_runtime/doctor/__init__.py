"""What keeps a machine, an installation or a package from running well: what `reader-edge doctor` reports."""
