"""Anthropic's dialect: messages, their tokens counted, and models in its shape.

Requests that come with an `anthropic-version` header, or to /v1/messages, also get errors as Anthropic sends them.
"""
