"""Models behind one seam: embed, extract, summarise, profile, chat."""
