"""OpenAI's Responses API: conversations as items, answers as items or typed events, and a store of what was answered.

The store holds prompts and answers in memory. It is off unless `--responses-store` says how many to keep.
"""
