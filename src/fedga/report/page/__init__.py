"""One page for a results folder: an HTML file that holds everything it shows and asks nothing of a network."""
