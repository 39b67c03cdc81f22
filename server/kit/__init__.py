"""What every feature of the server uses: database, errors, settings, HTTP fields, artifacts. Imports no feature."""
