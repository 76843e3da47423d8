"""The folder that becomes the package: its size, its lock, and how an export that was killed is resumed."""
