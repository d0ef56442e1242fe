"""The backends that compute a step's heavy parts, and the record of which ones an engine has chosen."""
