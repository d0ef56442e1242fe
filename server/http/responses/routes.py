"""Registers the routes of responses and conversations."""

from aiohttp import web

from server.http.responses import conversations, create_response, prompt_queries, stored_responses

RESPONSES = "/v1/responses"
CONVERSATIONS = "/v1/conversations"


def add_routes(app: web.Application) -> None:
    """Adds every route of responses and conversations."""
    router = app.router
    router.add_post(RESPONSES, create_response.create)
    router.add_post(RESPONSES + "/input_tokens", prompt_queries.count_input)
    router.add_post(RESPONSES + "/compact", prompt_queries.compact)
    router.add_get(RESPONSES + "/{id}", stored_responses.fetch, allow_head=False)  # it may be a stream
    router.add_delete(RESPONSES + "/{id}", stored_responses.delete)
    router.add_post(RESPONSES + "/{id}/cancel", stored_responses.cancel)
    router.add_get(RESPONSES + "/{id}/input_items", stored_responses.list_input)
    router.add_post(CONVERSATIONS, conversations.create)
    router.add_get(CONVERSATIONS + "/{id}", conversations.fetch)
    router.add_post(CONVERSATIONS + "/{id}", conversations.change)
    router.add_delete(CONVERSATIONS + "/{id}", conversations.delete)
    router.add_get(CONVERSATIONS + "/{id}/items", conversations.list_items)
    router.add_post(CONVERSATIONS + "/{id}/items", conversations.add)
    router.add_get(CONVERSATIONS + "/{id}/items/{item}", conversations.fetch_item)
    router.add_delete(CONVERSATIONS + "/{id}/items/{item}", conversations.delete_item)
