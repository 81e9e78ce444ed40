"""From a request to a proved environment: the arrow, engines, images, archives."""
