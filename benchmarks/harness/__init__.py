"""What `nothing_lost.py` is made of: load, faults, evidence, and the checker that compares the two."""
