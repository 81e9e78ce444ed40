"""What envsmith says of itself."""

VERSION = "0.1.0"
