"""How speculators are stored: folders and checkpoints, read and compared with the target before anything is made."""
