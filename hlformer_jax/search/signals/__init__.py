"""Ways to match a query: rankings of the videos by their pictures and by their words."""
