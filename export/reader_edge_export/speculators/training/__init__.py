"""Training of speculators: a package answers, its states are kept, and a small network learns to draft from them."""
