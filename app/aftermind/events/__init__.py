"""Events of memory: event types, and the bus that delivers them."""
