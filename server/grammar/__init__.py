"""Structured output: grammars limited, compiled and matched."""
