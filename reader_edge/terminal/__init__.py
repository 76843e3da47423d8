"""What a person sees beside the answer: progress, tables, sizes."""
