"""What a new claim does to what is believed: pure decisions, no I/O, no clock."""
