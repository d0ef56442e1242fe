"""The offline Python API: models in this process, without a server."""
