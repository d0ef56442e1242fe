"""The routes on whole texts: embeddings, ranks, scores, classes."""
