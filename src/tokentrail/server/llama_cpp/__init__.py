"""The dialect of llama.cpp's server: /completion, /props, /slots, /apply-template. Its names for how tokens are sampled
(`options`) are Ollama's too.
"""
