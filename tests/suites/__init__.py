"""The tests that every structure inherits: an entry in ``structures.py`` goes in, all queries and engines come out."""
