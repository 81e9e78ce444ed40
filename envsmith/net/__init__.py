"""The one HTTP client, the user's settings of package indexes, and one reading of the OCI specification."""
