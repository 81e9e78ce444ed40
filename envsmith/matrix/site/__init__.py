"""The page: static files from the knowledge and its records. Works from a file, needs no server and no framework."""
