"""How many nodes each pass gets, and whether drafting pays."""
