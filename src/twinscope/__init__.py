"""Twinscope: are these two networks the same, where do they first stop being the same, and why?"""
