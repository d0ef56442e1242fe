"""Servers started, loaded and watched from outside."""
