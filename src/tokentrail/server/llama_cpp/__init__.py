"""The dialect of llama.cpp's server: /completion, /infill, /props, /slots, /embedding and others. Its names for how
tokens are sampled (`options`) are Ollama's too.
"""
