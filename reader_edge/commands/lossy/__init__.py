"""Commands whose answers may differ from the model's own: a file each."""
