"""llama.cpp's own API: its completions are text completions with other names, and its answers have its timings."""
