"""OpenAI's Conversations API, and the stored records that responses and conversations share."""
