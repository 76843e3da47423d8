"""What passes take here, and whether their bits depend on their width: of any target."""
