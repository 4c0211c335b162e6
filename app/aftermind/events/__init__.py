"""What memory tells about itself: event types, and the bus that carries them."""
