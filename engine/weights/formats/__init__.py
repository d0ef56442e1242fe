"""The formats of model files: GGUF, and Hugging Face's folders of safetensors."""
