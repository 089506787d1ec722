"""The dialect of llama.cpp's server: /completion, /infill, /props, /slots, /apply-template. Its names for how tokens
are sampled are Ollama's too.
"""
