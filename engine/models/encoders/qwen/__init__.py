"""Encoders of the pictures and videos of Qwen's models."""
