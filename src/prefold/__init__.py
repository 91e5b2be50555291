"""Prefold: a prefix cache for serving large language models."""
