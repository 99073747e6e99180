"""Leadership among several metadata repositories."""
