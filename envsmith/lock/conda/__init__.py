"""The Conda lock of a cell: solved by rattler, proved equal to the pip lock, written for every tool."""
