"""Handlers that ship with job-supervisor: real models for pictures, texts and recordings,
thumbnails, mail, webhooks, programs, and small examples.

Every module here can be imported without the libraries of its extra; `setup` loads them, once
in each worker.
"""
