"""Pictures and tables of results.

Importing this needs numpy and rich alone: matplotlib loads when a picture is drawn.
"""
