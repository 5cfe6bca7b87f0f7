"""Pictures and tables of results; matplotlib loads when a picture is drawn."""
