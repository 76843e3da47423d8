"""What drafts reach on recorded answers, and what better evidence or cheaper passes would: `bench frontier`."""
