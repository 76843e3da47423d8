"""A package's chat template: conversations as it wants them, rendered in a process without rights."""
