"""The newest rows of captured tables on local disk, looked up by key or by other columns."""
