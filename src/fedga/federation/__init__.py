"""A real federation on Flower: a server and its sites, each a folder with keys, certificates and settings."""
