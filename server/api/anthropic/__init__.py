"""The bodies of Anthropic's Messages routes, whose unknown fields are passed over, and the conversations in them."""
