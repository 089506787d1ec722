"""OpenAI's dialect: chat completions, completions and models, with vLLM's further parameters."""
